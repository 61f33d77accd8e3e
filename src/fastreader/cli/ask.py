"""fastreader ask."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fastreader.cli.ask_options import Asking, Result
from fastreader.cli.asking import check_options, find_family, options_named
from fastreader.cli.inputs import check_output, examples, use_cache
from fastreader.cli.options import CacheOption, DeviceOption, DtypeOption, Format, ModelOption, PrecisionOption
from fastreader.cli.output import Writer
from fastreader.errors import InputError

_WIDTH = 120  # columns where standard output is no terminal


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
    method: Annotated[
        str, typer.Option(help="base, moi, sure, ... ; with @N behind it, of the first N passages.")
    ] = "base",
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
    candidates_prompt: Annotated[
        str | None, typer.Option(help="SuRe: instruction_first (default), or passages_first to read passages once.")
    ] = None,
    shots: Annotated[
        Path | None,
        typer.Option(
            help="Answered questions, in a file of the same kind: sure_few_shot and base_few_shot show them.",
            show_default=False,
        ),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="rerank, replug: weigh passages by tfidf, encoder, retriever or equal.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Sentence encoder of what compares passages; all-minilm-l6-v2 by default.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="SuRe: number of questions packed together [default: 8].")
    ] = None,
    bias: Annotated[
        Path | None, typer.Option(help="MoI: a calibration; see fastreader rerank.", show_default=False)
    ] = None,
    order: Annotated[str | None, typer.Option(help="MoI: matched (default) or descending.")] = None,
    on_overflow: Annotated[
        str | None, typer.Option(help="When a prompt is too long: error (default); drop_passages, or of MoI truncate.")
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
    from fastreader.reader.reader import Reader

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
    asking = Asking(
        method=method,
        k=k,
        mode=mode,
        max_summary_tokens=max_summary_tokens,
        candidates_prompt=candidates_prompt,
        shots=shots,
        weights=weights,
        encoder=encoder,
        batch_size=batch_size,
        on_overflow=on_overflow,
        bias=bias,
        order=order,
        output=output,
        resume=resume,
        progress=progress,
        on_error=(lambda i, example, error: skip(f"id {example.id}: {error}")) if skip_errors else None,
    )
    check_options(family, asking)
    reader = Reader.load(model, device=device, dtype=dtype, precision=precision)
    done = 0
    shown = (format or Format.table) if output is None else Format.table if explain else None
    render = family.explain if explain else family.line
    width = None if Console().is_terminal else _WIDTH
    writer: Writer[Result]
    with (
        options_named(),
        Writer(shown and shown.value, render, lambda result: result.to_dict(), width, end="\n") as writer,
    ):
        for result in family.answer(reader, questions, asking):
            writer.write(result)
            done += 1
    if output is not None:
        typer.echo(f"{done} answers in {output}", err=True)
    if skipped:
        typer.echo(f"{len(skipped)} skipped", err=True)
        raise typer.Exit(3)
