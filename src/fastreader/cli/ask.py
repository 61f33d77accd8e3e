"""fastreader ask."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastreader.cli import options
from fastreader.cli.calibrations import UNCALIBRATED
from fastreader.cli.inputs import Skipped, check_output, examples, use_cache
from fastreader.cli.output import Writer
from fastreader.cli.screen import Screen, say
from fastreader.core.checks import require

_WIDTH = 120  # columns if standard output is not a terminal


def ask(
    file: options.FileArgument = None,
    question: options.QuestionOption = None,
    passage: options.PassageOption = None,
    model: options.ModelOption = "smollm2-135m",
    method: Annotated[
        str,
        typer.Option(
            help="A method of `fastreader study --list`, such as base, moi, sure or sure:rerank; with @N, of the first "
            "N passages."
        ),
    ] = "base",
    explain: Annotated[
        bool, typer.Option("--explain", help="Show candidates, summaries, votes, orders and cost of each answer.")
    ] = False,
    num_candidates: Annotated[
        int | None, typer.Option("--num-candidates", "-k", help="SuRe: number of candidates; 2 by default.")
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="SuRe: judge by loglikelihood (default) or by the text that it generates.")
    ] = None,
    max_summary_tokens: Annotated[
        int | None, typer.Option(help="SuRe: at most N tokens of a summary; 512 by default.", show_default=False)
    ] = None,
    candidates_prompt: Annotated[
        str | None, typer.Option(help="SuRe: instruction_first (default) or passages_first.")
    ] = None,
    shots: Annotated[
        Path | None,
        typer.Option(
            help="Answered questions, in a file of the same kind, for sure:sure_few_shot and sure:base_few_shot.",
            show_default=False,
        ),
    ] = None,
    passage_weights: Annotated[
        str | None,
        typer.Option(help="sure:rerank, sure:replug: weigh passages by tfidf, encoder, retriever or equal."),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="SuRe: sentence encoder that compares passages; all-minilm-l6-v2 by default.")
    ] = None,
    batch_size: options.BatchSizeOption = 8,
    bias: Annotated[
        Path | None, typer.Option(help="MoI: a calibration; see fastreader moi.", show_default=False)
    ] = None,
    order: Annotated[str | None, typer.Option(help="MoI: matched (default) or descending.")] = None,
    on_overflow: Annotated[
        str | None,
        typer.Option(help="If a prompt is too long: error (default); SuRe: drop_passages; MoI: truncate."),
    ] = None,
    output: options.OutputOption = None,
    resume: options.ResumeOption = False,
    limit: options.LimitOption = None,
    skip_errors: options.SkipErrorsOption = False,
    format: options.FormatOption = None,
    progress: options.ProgressOption = None,
    adapter: options.AdapterOption = None,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    precision: options.PrecisionOption = "fast",
    cache_dir: options.CacheOption = None,
) -> None:
    """Answer questions from their passages.

    Examples:

      fastreader ask questions.jsonl --limit 3

      fastreader ask questions.jsonl --method sure --explain --limit 1

      fastreader ask -q "Which river is in Cairo?" -p "The Nile is in Cairo." --method sure
    """
    from fastreader.cli.asking import Answer, Asking, answers
    from fastreader.reader.reader import Reader

    use_cache(cache_dir)
    skip = Skipped()
    check_output(output, file, resume, format)
    table = format in (None, options.Format.table)
    require(table or not explain, f"--explain: is for tables; --format {format} has everything in it already")
    questions = examples(file, question, passage, None, limit, skip if skip_errors else None)
    flags = {
        "k": num_candidates,
        "mode": mode,
        "max_summary_tokens": max_summary_tokens,
        "candidates_prompt": candidates_prompt,
        "shots": shots,
        "weights": passage_weights,
        "encoder": encoder,
        "on_overflow": on_overflow,
        "bias": None if bias is None else str(bias),
        "order": order,
    }
    asking = Asking.of(method, flags)
    reader = Reader.load(model, device=device, dtype=dtype, precision=precision, adapter=adapter)
    done = 0
    shown = (format or options.Format.table) if output is None else options.Format.table if explain else None
    width = None if Screen().is_terminal else _WIDTH
    found = answers(
        reader,
        questions,
        asking,
        batch_size=batch_size,
        output=output,
        resume=resume,
        progress=progress,
        on_error=(lambda example, error: skip(f"id {example.id}: {error}")) if skip_errors else None,
    )
    render = Answer.explain if explain else Answer.line
    with Writer(shown and shown.value, render, lambda answer: answer.row, width, end="\n") as writer:
        noted = False
        for answer in found:
            if answer.uncalibrated and not noted:
                say(f"note: {UNCALIBRATED}")
                noted = True
            writer.write(answer)
            done += 1
    if output is not None:
        say(f"{done} answers in {output}")
    skip.finish()
