"""fastreader conflicts."""

from __future__ import annotations

from dataclasses import replace

from fastreader.cli import options
from fastreader.cli.inputs import Skipped
from fastreader.cli.output import Writer
from fastreader.errors import ContextOverflowError, InputError


@options.spread
def conflicts(
    *,
    questions: options.SkippableArguments,
    candidate: options.CandidateOption = None,
    format: options.FormatOption = None,
    prompt: options.PromptArguments,
    reader: options.ReaderArguments,
) -> None:
    """Find passages that contradict each other, and the odd one among them.

    Without candidates, in the file or by --candidate, the passages are compared over spans of their texts.

    Examples:

      fastreader conflicts questions.jsonl --limit 3

      fastreader conflicts -q "Where is the Nile?" -p "The Nile is in Egypt." -p "The Nile is in Peru." -c Egypt -c Peru
    """
    from fastreader.cli.tables.passages import conflicts_table
    from fastreader.passages.conflicts import Conflicts
    from fastreader.passages.conflicts import conflicts as found_in

    skip = Skipped(questions.skip_errors)
    examples = questions.read(candidate, skip.on_error)
    loaded, prompts = reader.load(), prompt.texts()
    with Writer((format or options.Format.table).value, conflicts_table, Conflicts.to_dict) as writer:
        for example in examples:
            given = replace(example, candidates=candidate) if candidate else example
            try:
                result = found_in(loaded, given, template=prompts, max_batch_tokens=prompt.max_batch_tokens)
            except (InputError, ContextOverflowError) as error:
                skip.fail(example, error)
                continue
            writer.write(result)
    skip.finish()
