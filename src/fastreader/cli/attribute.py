"""fastreader attribute."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fastreader.cli import options
from fastreader.cli.inputs import Skipped
from fastreader.cli.output import Writer
from fastreader.errors import ContextOverflowError, InputError


@options.spread
def attribute(
    *,
    questions: options.SkippableArguments,
    answer: Annotated[
        str | None, typer.Option("--answer", "-a", help="The answer to attribute; by default one is generated.")
    ] = None,
    way: Annotated[str, typer.Option(help="exact (all subsets), sampled, or auto: exact up to 6 passages.")] = "auto",
    orders: Annotated[int, typer.Option(help="Pairs of random orders, if sampled.", min=1)] = 16,
    seed: options.SeedOption = 0,
    format: options.FormatOption = None,
    prompt: options.PromptArguments,
    reader: options.KeepingReaderArguments,
) -> None:
    """Measure how much each passage contributes to an answer.

    Examples:

      fastreader attribute questions.jsonl --limit 3

      fastreader attribute -q "Where is the Nile?" -p "The Nile is in Egypt." -p "It is long." -a Egypt
    """
    from fastreader.cli.tables.passages import attribution_table
    from fastreader.passages.attribution import Attribution
    from fastreader.passages.attribution import attribute as attributed

    skip = Skipped(questions.skip_errors)
    examples = questions.read(None, skip.on_error)
    loaded = reader.load()
    how: dict[str, Any] = {"way": way, "orders": orders, "seed": seed, "template": prompt.texts()}
    how["cache"] = reader.passage_cache()
    with Writer((format or options.Format.table).value, attribution_table, Attribution.to_dict) as writer:
        for example in examples:
            try:
                result = attributed(loaded, example, None, answer, **how, max_batch_tokens=prompt.max_batch_tokens)
            except (InputError, ContextOverflowError) as error:
                skip.fail(example, error)
                continue
            writer.write(result)
    skip.finish()
