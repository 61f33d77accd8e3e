"""fastreader conflicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from fastreader.cli import options
from fastreader.cli.inputs import Skipped
from fastreader.cli.output import Writer
from fastreader.core.checks import expect
from fastreader.errors import ContextOverflowError, InputError


@options.spread
def conflicts(
    *,
    questions: options.SkippableArguments,
    candidate: options.CandidateOption = None,
    alias: Annotated[
        list[str] | None, typer.Option(metavar="CANDIDATE=NAME", help="Another name of a candidate; repeat.")
    ] = None,
    format: options.FormatOption = None,
    prompt: options.PromptArguments,
    reader: options.KeepingReaderArguments,
) -> None:
    """Find passages that contradict each other, and the odd one among them.

    Without candidates, in the file or by --candidate, the passages are compared over spans of their texts.

    A name given by --alias counts as its candidate, which every question must have.

    Examples:

      fastreader conflicts questions.jsonl --limit 3

      fastreader conflicts -q "Where is the Nile?" -p "The Nile is in Egypt." -p "The Nile is in Peru." -c Egypt -c Peru

      fastreader conflicts -q "Where is Bonn?" -p "In the FRG." -p "In Peru." -c Germany -c Peru --alias Germany=FRG
    """
    from fastreader.cli.tables.passages import conflicts_table
    from fastreader.passages.conflicts import Conflicts
    from fastreader.passages.conflicts import conflicts as found_in

    aliases = _aliases(alias or [])
    skip = Skipped(questions.skip_errors)
    examples = questions.read(candidate, skip.on_error)
    loaded = reader.load()
    how: dict[str, Any] = {"aliases": aliases, "template": prompt.texts(), "cache": reader.passage_cache()}
    with Writer((format or options.Format.table).value, conflicts_table, Conflicts.to_dict) as writer:
        for example in examples:
            given = replace(example, candidates=candidate) if candidate else example
            try:
                result = found_in(loaded, given, **how, max_batch_tokens=prompt.max_batch_tokens)
            except (InputError, ContextOverflowError) as error:
                skip.fail(example, error)
                continue
            writer.write(result)
    skip.finish()


def _aliases(pairs: list[str]) -> dict[str, list[str]]:
    """Return the names in "CANDIDATE=NAME" by candidate."""
    found: dict[str, list[str]] = {}
    for pair in pairs:
        candidate, equals, name = pair.partition("=")
        expect(bool(candidate.strip() and equals and name.strip()), "--alias", "CANDIDATE=NAME", pair)
        found.setdefault(candidate.strip(), []).append(name.strip())
    return found
