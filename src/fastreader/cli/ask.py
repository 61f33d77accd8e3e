"""fastreader ask."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from fastreader.cli import options
from fastreader.cli.inputs import UNCALIBRATED, Skipped, check_output, named_after
from fastreader.cli.output import Writer
from fastreader.cli.screen import Screen, say
from fastreader.core.checks import require

_WIDTH = 120  # columns if standard output is not a terminal


@dataclass(frozen=True)
class SureArguments:
    """Say how SuRe answers, where its defaults do not fit."""

    panel: ClassVar[str] = "SuRe"
    num_candidates: Annotated[
        int | None, typer.Option("--num-candidates", "-k", help="Number of candidates; 2 by default.")
    ] = None
    mode: Annotated[
        str | None, typer.Option(help="Judge by loglikelihood (default) or by the text that the reader generates.")
    ] = None
    max_summary_tokens: Annotated[
        int | None, typer.Option(help="At most N tokens of a summary; 512 by default.", show_default=False)
    ] = None
    candidates_prompt: Annotated[str | None, typer.Option(help="instruction_first (default) or passages_first.")] = None
    shots: Annotated[
        Path | None,
        typer.Option(
            help="Answered questions, in a file of the same kind, for sure:sure_few_shot and sure:base_few_shot.",
            show_default=False,
        ),
    ] = None
    passage_weights: Annotated[
        str | None,
        typer.Option(help="sure:rerank, sure:replug: weigh passages by tfidf, encoder, retriever or equal."),
    ] = None
    encoder: Annotated[
        str | None, typer.Option(help="Sentence encoder that compares passages; all-minilm-l6-v2 by default.")
    ] = None


@options.spread
def ask(
    *,
    questions: options.SkippableArguments,
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
    batch_size: options.BatchSizeOption = 8,
    bias: Annotated[
        Path | None, typer.Option(help="MoI: a calibration; see fastreader moi.", show_default=False)
    ] = None,
    order: Annotated[str | None, typer.Option(help="MoI: matched (default) or descending.")] = None,
    on_overflow: Annotated[
        str | None,
        typer.Option(help="If a prompt is too long: error (default); SuRe: drop_passages; MoI: truncate."),
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option(help="The method's prompt texts, a TOML or JSON file (examples/templates).", show_default=False),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="At most N tokens of an answer (SuRe has limits by stage).", min=1)
    ] = None,
    sure: SureArguments,
    dry_run: options.DryRunOption = False,
    output: options.OutputArguments,
    reader: options.ReaderArguments,
) -> None:
    """Answer questions from their passages.

    Examples:

      fastreader ask questions.jsonl --limit 3

      fastreader ask questions.jsonl --method sure --explain --limit 1

      fastreader ask questions.jsonl --method sure --dry-run

      fastreader ask -q "Which river is in Cairo?" -p "The Nile is in Cairo." --method sure
    """
    from fastreader.cli.asking import Answer, Asking, answers, dry
    from fastreader.data.answers import unread_answers

    skip = Skipped(questions.skip_errors)
    check_output(output, questions.file)
    table = output.format in (None, options.Format.table)
    require(table or not explain, f"--explain: is for tables; --format {output.format} has everything in it already")
    examples = questions.read(None, skip.on_error)
    flags = {"on_overflow": on_overflow, "bias": None if bias is None else str(bias), "order": order, **asdict(sure)}
    flags["max_new_tokens"] = max_new_tokens
    flags["k"], flags["weights"] = flags.pop("num_candidates"), flags.pop("passage_weights")
    asking = Asking.of(method, flags, template)
    first = list(islice(examples, 1))
    if unread := unread_answers(first):
        say(f"note: {unread}")
    if dry_run:
        from fastreader.cli.tables.dry_run import dry_table

        tokenizer = reader.load_dry()
        cost = dry(tokenizer, chain(first, examples), lambda: Asking.of(method, flags, template), batch_size)
        if cost.problem:
            say(f"note: {cost.failed + cost.left_out} questions without an answer: {cost.problem}")
        Screen(width=None if Screen().is_terminal else _WIDTH).print(
            dry_table([cost], {tokenizer.name: tokenizer.speed})
        )
        return
    loaded = reader.load()
    done = 0
    shown: options.Format | None = output.format or options.Format.table
    if output.output is not None:
        shown = options.Format.table if explain else None
    width = None if Screen().is_terminal else _WIDTH
    found = answers(
        loaded,
        chain(first, examples),
        asking,
        batch_size=batch_size,
        output=output.output,
        resume=output.resume,
        progress=output.progress,
        on_error=(lambda example, error: skip(named_after(example, error))) if skip.wanted else None,
    )
    render = Answer.explain if explain else Answer.line
    with Writer(shown and shown.value, render, lambda answer: answer.row, width, end="\n") as writer:
        noted = False
        verdicts: list[bool] = []
        for answer in found:
            if answer.uncalibrated and not noted:
                say(f"note: {UNCALIBRATED}")
                noted = True
            writer.write(answer)
            done += 1
            if answer.right is not None:
                verdicts.append(answer.right)
    if len(verdicts) > 1:
        say(f"{sum(verdicts)} of {len(verdicts)} answers contain a right one")
    if output.output is not None:
        say(f"{done} answers in {output.output}")
    skip.finish()
