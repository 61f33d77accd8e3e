"""fastreader ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType

from fastreader.cli.inputs import check_output, examples, use_cache
from fastreader.cli.options import CacheOption, DeviceOption, DtypeOption, Format, ModelOption, PrecisionOption
from fastreader.cli.writing import Result, Writer
from fastreader.data import Example
from fastreader.errors import FastreaderError, InputError

if TYPE_CHECKING:
    from fastreader.protocol import ReaderProtocol


_WIDTH = 120  # columns where standard output is no terminal


@dataclass(frozen=True)
class Asking:
    """What the command line asks of a method; what a method has no use for is left at None.

    Attributes:
        method: its name.
        k: candidates.
        mode: how labels are judged.
        max_summary_tokens: of each summary.
        output, resume: file of results, and whether to continue it.
        progress: as everywhere.
        on_error: called for each question that fails; None: raise.
    """

    method: str
    k: int | None
    mode: str | None
    max_summary_tokens: int | None
    on_overflow: str | None
    output: Path | None
    resume: bool
    progress: bool | None
    on_error: Callable[[int, Example, FastreaderError], object] | None


@dataclass(frozen=True)
class AskMethod:
    """A family of methods behind `fastreader ask`.

    Attributes:
        names: the methods it answers by; called when needed, so that nothing loads before.
        answer: gives a result for each example.
        line: a result on one line.
        explain: a result with how it came about.
    """

    names: Callable[[], Mapping[str, object]]
    answer: Callable[[ReaderProtocol, Iterator[Example], Asking], Iterator[Any]]
    line: Callable[[Any], RenderableType]
    explain: Callable[[Any], RenderableType]


def _sure_names() -> Mapping[str, object]:
    from fastreader.sure.variants import METHODS

    return METHODS


def _sure_answers(reader: ReaderProtocol, questions: Iterator[Example], asking: Asking) -> Iterator[Result]:
    from fastreader import sure

    options: dict[str, Any] = {
        "k": asking.k,
        "mode": asking.mode,
        "max_summary_tokens": asking.max_summary_tokens,
        "on_overflow": asking.on_overflow,
    }
    return sure.answer_many(
        reader,
        questions,
        method=asking.method,
        output=asking.output,
        resume=asking.resume,
        progress=asking.progress,
        on_error=asking.on_error,
        **{name: value for name, value in options.items() if value is not None},
    )


def _sure_line(result: Any) -> RenderableType:
    from fastreader.report.explain import answer_line

    return answer_line(result)


def _sure_explain(result: Any) -> RenderableType:
    from fastreader.report.explain import explain

    return explain(result)


# A method of another package is one more entry.
FAMILIES = [AskMethod(_sure_names, _sure_answers, _sure_line, _sure_explain)]


def find_family(method: str) -> AskMethod:
    """The family that answers by `method`.

    Raises:
        InputError: none does.
    """
    plain = method.partition("@")[0]
    for family in FAMILIES:
        if plain in family.names():
            return family
    known = [name for family in FAMILIES for name in family.names()]
    raise InputError(f"--method: expected one of {', '.join(known)}, got {method!r}")


def ask(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Questions with passages: .json or .jsonl, also gzipped; - for standard input.", show_default=False
        ),
    ] = None,
    question: Annotated[str | None, typer.Option("--question", "-q", help="One question, in place of a file.")] = None,
    passage: Annotated[
        list[str] | None, typer.Option("--passage", "-p", help="A passage; repeat, in the retriever's order.")
    ] = None,
    model: ModelOption = "smollm2-135m",
    method: Annotated[str, typer.Option(help="base, sure, ... ; with @N behind it, of the first N passages.")] = "base",
    explain: Annotated[
        bool, typer.Option("--explain", help="Show how the answer came about: candidates, summaries, vote, cost.")
    ] = False,
    k: Annotated[
        int | None, typer.Option("--candidates", "-k", help="SuRe: candidates asked for; 2 by default.")
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="SuRe: judge by loglikelihood (default) or by what is written, generate.")
    ] = None,
    max_summary_tokens: Annotated[
        int | None, typer.Option(help="SuRe: new tokens of a summary at most; 512 by default.", show_default=False)
    ] = None,
    on_overflow: Annotated[
        str | None, typer.Option(help="When a prompt is too long: error (default) or drop_passages.")
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
    skip_errors: Annotated[
        bool, typer.Option(help="Report questions that cannot be read or answered, and go on.")
    ] = False,
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

      fastreader ask questions.jsonl --limit 3

      fastreader ask questions.jsonl --method sure --explain --limit 1

      fastreader ask -q "Which river is in Cairo?" -p "The Nile is in Cairo." --method sure
    """
    from fastreader.reader import Reader

    use_cache(cache_dir)
    skipped: list[str] = []

    def skip(message: str) -> None:
        skipped.append(message)
        typer.echo(f"skipped: {message}", err=True)

    file = Path("/dev/stdin") if file == Path("-") else file
    check_output(output, file, resume, format)
    if explain and format not in (None, Format.table):
        raise InputError(f"--explain: is for reading; --format {format} has everything in it already")
    family = find_family(method)
    questions = examples(file, question, passage, None, limit, skip if skip_errors else None)
    reader = Reader.load(model, device=device, dtype=dtype, precision=precision)
    asking = Asking(
        method=method,
        k=k,
        mode=mode,
        max_summary_tokens=max_summary_tokens,
        on_overflow=on_overflow,
        output=output,
        resume=resume,
        progress=progress,
        on_error=(lambda i, example, error: skip(f"id {example.id}: {error}")) if skip_errors else None,
    )
    done = 0
    shown = (format or Format.table) if output is None else Format.table if explain else None
    render = family.explain if explain else family.line
    with Writer(shown, lambda result: _print(render(result))) as writer:
        for result in family.answer(reader, questions, asking):
            writer.write(result)
            done += 1
    if output is not None:
        typer.echo(f"{done} answers in {output}", err=True)
    if skipped:
        typer.echo(f"{len(skipped)} skipped", err=True)
        raise typer.Exit(3)


def _print(rendered: RenderableType) -> None:
    console = Console()
    (console if console.is_terminal else Console(width=_WIDTH)).print(rendered)
