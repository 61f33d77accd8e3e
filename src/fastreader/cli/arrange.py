"""fastreader arrange."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastreader.cli import options
from fastreader.cli.inputs import check_writable
from fastreader.cli.output import write_json
from fastreader.core.checks import located
from fastreader.data.types import place_of

if TYPE_CHECKING:
    from fastreader.data import Example


@options.spread
def arrange(
    *,
    questions: options.QuestionArguments,
    model: options.ModelOption = "smollm2-135m",
    bias: Annotated[
        Path | None,
        typer.Option(
            help="A calibration, or the file of an arranger; by default what is installed or shipped.",
            show_default=False,
        ),
    ] = None,
    template: options.TemplateOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write instead of standard output.", show_default=False),
    ] = None,
    cache_dir: options.CacheOption = None,
) -> None:
    """Put the best passages where the reader's position bias is largest, by the retriever's scores.

    No model is loaded: the calibration of the reader named by --model says where. Prints the questions with their
    passages in reading order, for `fastreader ask -` or `fastreader score -`.

    Examples:

      fastreader arrange questions.jsonl --output arranged.jsonl

      fastreader arrange questions.jsonl --limit 3 | fastreader ask - --method base
    """
    from fastreader.data import save_examples
    from fastreader.data.write import dpr_row
    from fastreader.passages.arrange import Arranger
    from fastreader.passages.arrange import arrange as placed
    from fastreader.reader.prompts.template import Template

    options.use_cache(cache_dir)
    if output is not None:
        check_writable("--output", output)
    prompts = Template.load(template) if template else None
    arranger = Arranger.load(bias) if bias else Arranger.for_reader(model, prompts)

    def arranged() -> Iterator[Example]:
        for example in questions.read():
            with located(place) if (place := place_of(example)) else nullcontext():
                yield replace(example, passages=placed(example.passages, arranger))

    if output is not None:
        save_examples(arranged(), output)
        return
    for example in arranged():
        write_json(dpr_row(example))
