"""fastreader ask. A method is a function of (reader, example, options) in `METHODS`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from fastreader.answers import contained, exact_match, f1
from fastreader.cli.inputs import check_output, examples, model_name, remaining, use_cache
from fastreader.cli.options import CacheOption, DeviceOption, DtypeOption, Format, ModelOption, PrecisionOption
from fastreader.cli.output import Writer
from fastreader.data import Example
from fastreader.errors import InputError, OutOfBudgetError
from fastreader.jsonl import ResultLog
from fastreader.progress import track

if TYPE_CHECKING:
    from fastreader.moi import PositionBias
    from fastreader.prompts import Template
    from fastreader.reader import Reader


class Answer(Protocol):
    """What a method gives."""

    @property
    def text(self) -> str:
        """The answer."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        ...


@dataclass(frozen=True)
class AskOptions:
    """What the methods are told; each takes what concerns it.

    Attributes:
        template: the prompt's texts.
        max_new_tokens: tokens written at most.
        max_passages: passages read.
        bias, order: MoI's.
        seed: of designs that draw.
        max_tokens: tokens in one pass at most.
    """

    template: Template
    max_new_tokens: int
    max_passages: int
    bias: PositionBias | None
    order: str
    seed: int
    max_tokens: int | None


def base(reader: Reader, example: Example, options: AskOptions) -> Answer:
    """One reading, in the retriever's order."""
    from dataclasses import replace

    from fastreader.reading import read

    return read(
        reader,
        replace(example, passages=example.passages[: options.max_passages]),
        template=options.template,
        max_new_tokens=options.max_new_tokens,
        max_tokens=options.max_tokens,
    )


def moi(reader: Reader, example: Example, options: AskOptions) -> Answer:
    """MoI's order, then one reading."""
    from fastreader.moi import answer

    return answer(
        reader,
        example,
        bias=options.bias,
        order=options.order,
        max_passages=options.max_passages,
        max_new_tokens=options.max_new_tokens,
        template=options.template,
        seed=options.seed,
        max_tokens=options.max_tokens,
    )


METHODS: dict[str, Callable[[Reader, Example, AskOptions], Answer]] = {"base": base, "moi": moi}


def ask(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Questions with passages: .json or .jsonl, also gzipped; - for standard input.", show_default=False
        ),
    ] = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "base",
    question: Annotated[str | None, typer.Option("--question", "-q", help="One question, in place of a file.")] = None,
    passage: Annotated[
        list[str] | None, typer.Option("--passage", "-p", help="A passage; repeat, in the retriever's order.")
    ] = None,
    candidate: Annotated[
        list[str] | None,
        typer.Option("--candidate", "-c", help="An answer to choose from; repeat. None: the answer is written."),
    ] = None,
    model: ModelOption = "smollm2-135m",
    max_new_tokens: Annotated[int, typer.Option(help="Tokens of a written answer at most.", min=1)] = 32,
    max_passages: Annotated[int, typer.Option(help="Passages read.", min=1)] = 10,
    bias: Annotated[Path | None, typer.Option(help="A calibration, for moi; see rerank.", show_default=False)] = None,
    order: Annotated[str, typer.Option(help="Of moi: matched or descending.")] = "matched",
    seed: Annotated[int, typer.Option(help="For designs that draw.")] = 0,
    template: Annotated[
        Path | None, typer.Option(help="Prompt texts, a TOML or JSON file.", show_default=False)
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Tokens in one pass at most; from free memory by default.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Append results to this .jsonl file, not standard output.", show_default=False
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue --output where it stopped.")] = False,
    limit: Annotated[
        int | None, typer.Option(help="Only the first so many questions.", min=1, show_default=False)
    ] = None,
    skip_errors: Annotated[bool, typer.Option(help="Report questions that cannot be answered, and go on.")] = False,
    format: Annotated[
        Format | None, typer.Option("--format", "-f", help="Of standard output; table by default.", show_default=False)
    ] = None,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="Default: on a terminal.", show_default=False)
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    precision: PrecisionOption = "fast",
    cache_dir: CacheOption = None,
) -> None:
    """Answer questions from their passages.

    Examples:

      fastreader ask questions.jsonl --method moi --limit 3

      fastreader ask -q "Which river is in Cairo?" -p "The Nile is in Egypt." -p "The Seine is in Paris."
    """
    from fastreader.moi import PositionBias
    from fastreader.prompts import Template
    from fastreader.reader import Reader

    if method not in METHODS:
        raise InputError(f"--method: expected one of {', '.join(METHODS)}, got {method!r}")
    use_cache(cache_dir)
    skipped: list[str] = []

    def skip(message: str) -> None:
        skipped.append(message)
        typer.echo(f"skipped: {message}", err=True)

    file = Path("/dev/stdin") if file == Path("-") else file
    check_output(output, file, resume, format)
    questions = examples(file, question, passage, candidate, limit, skip if skip_errors else None)
    options = AskOptions(
        template=Template.load(template) if template else Template(),
        max_new_tokens=max_new_tokens,
        max_passages=max_passages,
        bias=PositionBias.load(bias) if bias else None,
        order=order,
        seed=seed,
        max_tokens=max_tokens,
    )
    measures: list[dict[str, float]] = []
    with ExitStack() as stack:
        log = None
        if output is not None:
            settings: dict[str, Any] = {
                "method": method,
                "max_new_tokens": max_new_tokens,
                "max_passages": max_passages,
                "order": order,
                "seed": seed,
                "template": options.template.to_dict(),
                "bias": None if options.bias is None else options.bias.to_dict(),
                "model": model_name(model),
                "dtype": dtype,
                "precision": precision,
            }
            log = stack.enter_context(ResultLog(output, settings=settings, resume=resume))
        reader = Reader.load(model, device=device, dtype=dtype, precision=precision)
        advance = stack.enter_context(track("answering", limit, "questions", progress))
        shown = None if log is not None else (format or Format.table).value
        writer: Writer[dict[str, Any]] = Writer(shown, _table, lambda row: row)
        stack.enter_context(writer)
        digests: dict[str, str] = {}
        for example in remaining(questions, candidate, False, log, digests):
            try:
                answered = METHODS[method](reader, _with(example, candidate), options)
            except (InputError, OutOfBudgetError) as error:
                located = f"id {example.id}: {error}"
                if not skip_errors:
                    raise type(error)(located) from error
                skip(located)
                continue
            row = {"question": example.question, "method": method, "answer": answered.text, **answered.to_dict()}
            if example.answers:
                row["measures"] = measured(answered.text, example.answers)
                measures.append(row["measures"])
            if log is not None:
                key = example.id
                assert key is not None
                log.append(key, row, example=digests.pop(key))
            else:
                writer.write({"id": example.id, **row})
            advance(1)
    if measures:
        means = (f"{name} {sum(m[name] for m in measures) / len(measures):.3f}" for name in measures[0])
        typer.echo(f"{len(measures)} questions: {', '.join(means)}", err=True)
    if skipped:
        typer.echo(f"{len(skipped)} skipped", err=True)
        raise typer.Exit(3)


def measured(text: str, right: list[str]) -> dict[str, float]:
    """How good an answer is, by the field's measures."""
    return {"exact_match": exact_match(text, right), "f1": f1(text, right), "contained": contained(text, right)}


def _with(example: Example, candidates: list[str] | None) -> Example:
    from dataclasses import replace

    return example if candidates is None else replace(example, candidates=candidates)


def _table(row: dict[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [Text(row["question"], style="bold"), Text(row["answer"], style="green")]
    if "measures" in row:
        parts.append(Text(", ".join(f"{name} {value:.2f}" for name, value in row["measures"].items())))
    if note := row.get("ranked", {}).get("note"):
        parts.append(Text(f"Caution: {note}.", style="yellow"))
    return Group(*parts)
