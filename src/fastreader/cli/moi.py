"""fastreader moi."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastreader.cli import options
from fastreader.cli.inputs import UNCALIBRATED, Resumed, Skipped, check_output
from fastreader.cli.output import Writer, write_trec
from fastreader.cli.screen import say
from fastreader.core.progress import track
from fastreader.data.result_log import ResultLog
from fastreader.data.write import trec_lines
from fastreader.errors import InputError, NumericsError, OutOfBudgetError

if TYPE_CHECKING:
    from fastreader.moi import Ranked


@options.spread
def moi(
    *,
    questions: options.SkippableArguments,
    bias: Annotated[
        Path | None,
        typer.Option(help="A calibration; by default the one installed or shipped for this use.", show_default=False),
    ] = None,
    order: Annotated[str, typer.Option(help="matched (largest utility at the best place) or descending.")] = "matched",
    max_passages: Annotated[int, typer.Option(help="Number of passages scored; the others follow them.", min=1)] = 10,
    stop_p_best: Annotated[
        float | None,
        typer.Option(help="Add orderings until a passage is best with this probability.", show_default=False),
    ] = None,
    cost: options.CostOption = False,
    orderings: options.OrderingArguments,
    prompt: options.PromptArguments,
    output: options.RankOutputArguments,
    reader: options.ReaderArguments,
) -> None:
    """Reorder the passages for the reader, by the scores of many orders (MoI).

    A TREC run ranks by utility; the other formats list passages in reading order.

    Examples:

      fastreader moi questions.jsonl --max-passages 5 --limit 3

      fastreader moi questions.jsonl.gz --order descending --format trec > run.trec
    """
    from fastreader.cli.tables.passages import ranked_table
    from fastreader.moi import PositionBias, Stopping, plan
    from fastreader.moi import rerank as run
    from fastreader.moi.calibration.store import at_hand

    skip = Skipped(questions.skip_errors)
    check_output(output, questions.file, cost=cost)
    examples = questions.read(None, skip.on_error)
    prompts = prompt.texts()
    calibration = PositionBias.load(bias) if bias else None
    what: dict[str, Any] = {"max_passages": max_passages, **asdict(orderings)}
    with ExitStack() as stack:
        log = None
        loaded = reader.load()
        if output.output is not None and (not cost or (output.resume and output.output.exists())):
            settings = {**what, "order": order, "stop_p_best": stop_p_best, "template": prompts.to_dict()}
            settings |= reader.settings()
            found = at_hand(loaded.describe(), prompts.digest()) if calibration is None else calibration.to_dict()
            settings["bias"] = found
            log = stack.enter_context(ResultLog(output.output, settings=settings, resume=output.resume, read_only=cost))
        what |= {"bias": calibration, "template": prompts, "max_batch_tokens": prompt.max_batch_tokens}
        stopping = None if stop_p_best is None else Stopping(p_best=stop_p_best, same_order=None)
        kept = Resumed(log)
        advance = stack.enter_context(
            track("ranking", questions.limit, "questions", False if cost else output.progress)
        )
        shown = output.format or options.RankFormat.table
        writer: Writer[Ranked] = Writer(None if log or cost else shown.value, ranked_table, lambda r: r.to_dict())
        stack.enter_context(writer)
        given = computed = most = count = 0
        noted = False
        for example in kept.left(examples, scores=orderings.prune_mass is not None):
            try:
                if cost:
                    planned = plan(loaded, example, **what).cost
                    given, computed, count = given + planned.full, computed + planned.computed_tokens, count + 1
                    most += planned.computed_tokens + planned.full
                    continue
                ranked = run(loaded, example, order=order, stopping=stopping, **what)
                lines = _trec(ranked) if log is None and shown is options.RankFormat.trec else []
            except (InputError, NumericsError, OutOfBudgetError) as error:
                skip.fail(example, error)
                continue
            if ranked.bias_source.startswith("none") and shown is not options.RankFormat.table and not noted:
                say(f"note: {UNCALIBRATED}")
                noted = True
            if log is not None:
                kept.append(ranked.id, ranked.to_dict())
            elif shown is options.RankFormat.trec:
                write_trec(lines)
            else:
                writer.write(ranked)
            advance(1)
        if cost:
            share = computed / given if given else 0.0
            rounds = "" if stop_p_best is None else f" in the first rounds, at most {most:,} in all"
            typer.echo(f"{count} questions: {computed:,} tokens to compute{rounds}, {share:.0%} of 3N whole orderings")
    skip.finish()


def _trec(ranked: Ranked) -> list[str]:
    """Return a TREC run's lines by falling utility, and the tail below the lowest utility.

    Raises:
        InputError: if an id contains white space or control characters, or the utilities' sign is undetermined.
    """
    lowest = min((p.utility for p in ranked if p.utility is not None), default=0.0)
    rows = []
    for p in ranked.by_utility():
        score = lowest - (p.index + 1) if p.utility is None else p.utility
        rows.append((str(p.index) if p.passage.id is None else p.passage.id, score))
    return trec_lines(ranked.id, rows, "fastreader-moi", name="--format trec")
