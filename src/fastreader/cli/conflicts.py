"""fastreader conflicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from fastreader.cli import options
from fastreader.cli.inputs import Skipped, examples, use_cache
from fastreader.cli.output import Writer
from fastreader.core.checks import located
from fastreader.errors import ContextOverflowError, InputError


def conflicts(
    file: options.FileArgument = None,
    question: options.QuestionOption = None,
    passage: options.PassageOption = None,
    candidate: Annotated[
        list[str] | None,
        typer.Option("--candidate", "-c", help="An answer to compare; repeat. By default the file's, or spans."),
    ] = None,
    model: options.ModelOption = "smollm2-135m",
    template: options.TemplateOption = None,
    max_batch_tokens: options.MaxBatchTokensOption = None,
    limit: options.LimitOption = None,
    skip_errors: options.SkipErrorsOption = False,
    format: options.FormatOption = None,
    adapter: options.AdapterOption = None,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    precision: options.PrecisionOption = "fast",
    cache_dir: options.CacheOption = None,
) -> None:
    """Find passages that contradict each other, and the odd one among them.

    Examples:

      fastreader conflicts questions.jsonl --limit 3

      fastreader conflicts -q "Where is the Nile?" -p "The Nile is in Egypt." -p "The Nile is in Peru." -c Egypt -c Peru
    """
    from fastreader.cli.tables.conflicts import conflicts_table
    from fastreader.passages.conflicts import Conflicts
    from fastreader.passages.conflicts import conflicts as found_in
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.reader import Reader

    use_cache(cache_dir)
    skip = Skipped()
    questions = examples(file, question, passage, candidate, limit, skip if skip_errors else None)
    prompts = Template.load(template) if template else None
    reader = Reader.load(model, device=device, dtype=dtype, precision=precision, adapter=adapter)
    shown = (format or options.Format.table).value
    with Writer(shown, conflicts_table, Conflicts.to_dict) as writer:
        for example in questions:
            given = replace(example, candidates=candidate) if candidate else example
            try:
                with located(f"id {example.id}"):
                    result = found_in(reader, given, template=prompts, max_batch_tokens=max_batch_tokens)
            except (InputError, ContextOverflowError) as error:
                if not skip_errors:
                    raise
                skip(str(error))
                continue
            writer.write(result)
    skip.finish()
