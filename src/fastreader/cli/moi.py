"""fastreader moi."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastreader.cli import options
from fastreader.cli.calibrations import UNCALIBRATED
from fastreader.cli.inputs import Skipped, check_output, examples, model_settings, remaining, use_cache
from fastreader.cli.output import Writer
from fastreader.cli.screen import say
from fastreader.core.progress import track
from fastreader.data.result_log import ResultLog
from fastreader.data.write import trec_lines
from fastreader.errors import InputError, NumericsError, OutOfBudgetError

if TYPE_CHECKING:
    from fastreader.moi import Ranked


def moi(
    file: options.FileArgument = None,
    question: options.QuestionOption = None,
    passage: options.PassageOption = None,
    model: options.ModelOption = "smollm2-135m",
    bias: Annotated[
        Path | None,
        typer.Option(help="A calibration; by default the one installed or shipped for this use.", show_default=False),
    ] = None,
    order: Annotated[str, typer.Option(help="matched (largest utility at the best place) or descending.")] = "matched",
    max_passages: Annotated[int, typer.Option(help="Number of passages scored; the others follow them.", min=1)] = 10,
    prune: options.PruneOption = None,
    prune_mass: options.PruneMassOption = None,
    stop_p_best: Annotated[
        float | None,
        typer.Option(help="Add orderings until a passage is best with this probability.", show_default=False),
    ] = None,
    seed: options.SeedOption = 0,
    template: options.TemplateOption = None,
    max_batch_tokens: options.MaxBatchTokensOption = None,
    output: options.OutputOption = None,
    resume: options.ResumeOption = False,
    limit: options.LimitOption = None,
    skip_errors: options.SkipErrorsOption = False,
    cost: options.CostOption = False,
    format: options.RankFormatOption = None,
    progress: options.ProgressOption = None,
    adapter: options.AdapterOption = None,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    precision: options.PrecisionOption = "fast",
    cache_dir: options.CacheOption = None,
) -> None:
    """Reorder the passages for the reader, by the scores of many orders (MoI).

    A TREC run ranks by utility; the other formats list passages in reading order.

    Examples:

      fastreader moi questions.jsonl --max-passages 5 --limit 3

      fastreader moi questions.jsonl.gz --order descending --format trec > run.trec
    """
    from fastreader.cli.tables.moi import ranked_table
    from fastreader.moi import PositionBias, Stopping, plan
    from fastreader.moi import rerank as run
    from fastreader.moi.calibration.store import at_hand
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.reader import Reader

    use_cache(cache_dir)
    skip = Skipped()
    check_output(output, file, resume, format, cost=cost)
    questions = examples(file, question, passage, None, limit, skip if skip_errors else None)
    prompts = Template.load(template) if template else Template()
    calibration = PositionBias.load(bias) if bias else None
    what: dict[str, Any] = {"max_passages": max_passages, "prune": prune, "prune_mass": prune_mass, "seed": seed}
    with ExitStack() as stack:
        log = None
        reader = Reader.load(model, device=device, dtype=dtype, precision=precision, adapter=adapter)
        if output is not None and (not cost or (resume and output.exists())):
            settings = {**what, "order": order, "stop_p_best": stop_p_best, "template": prompts.to_dict()}
            settings |= model_settings(model, dtype, precision, adapter)
            found = at_hand(reader.describe(), prompts.digest()) if calibration is None else calibration.to_dict()
            settings["bias"] = found
            log = stack.enter_context(ResultLog(output, settings=settings, resume=resume, read_only=cost))
        digests: dict[str, str] = {}
        advance = stack.enter_context(track("ranking", limit, "questions", False if cost else progress))
        shown = options.RankFormat.table if format is None else format
        writer: Writer[Ranked] = Writer(None if log or cost else shown.value, ranked_table, lambda r: r.to_dict())
        stack.enter_context(writer)
        given = computed = most = count = 0
        noted = False
        for example in remaining(questions, None, True, log, digests, scores=prune_mass is not None):
            try:
                if cost:
                    planned = plan(
                        reader, example, bias=calibration, template=prompts, max_batch_tokens=max_batch_tokens, **what
                    ).cost
                    given, computed, count = given + planned.full, computed + planned.computed_tokens, count + 1
                    most += planned.computed_tokens + planned.full
                    continue
                ranked = run(
                    reader,
                    example,
                    bias=calibration,
                    order=order,
                    template=prompts,
                    stopping=None if stop_p_best is None else Stopping(p_best=stop_p_best, same_order=None),
                    max_batch_tokens=max_batch_tokens,
                    **what,
                )
                lines = _trec(ranked) if log is None and shown is options.RankFormat.trec else []
            except (InputError, NumericsError, OutOfBudgetError) as error:
                located = f"id {example.id}: {error}"
                if not skip_errors:
                    raise type(error)(located) from error
                skip(located)
                continue
            if ranked.bias_source.startswith("none") and shown is not options.RankFormat.table and not noted:
                say(f"note: {UNCALIBRATED}")
                noted = True
            if log is not None:
                assert ranked.id is not None
                log.append(ranked.id, ranked.to_dict(), example=digests.pop(ranked.id))
            elif shown is options.RankFormat.trec:
                sys.stdout.writelines(lines)
            else:
                writer.write(ranked)
            advance(1)
        if cost:
            share = computed / given if given else 0.0
            rounds = "" if stop_p_best is None else f" in the first rounds, at most {most:,} in all"
            typer.echo(f"{count} questions: {computed:,} tokens to compute{rounds}, {share:.0%} of 3N whole orderings")
    skip.finish()


def _trec(ranked: Ranked) -> list[str]:
    """Return a TREC run's lines by falling utility; the tail follows below the lowest utility.

    Raises:
        InputError: if an id contains white space or control characters, or the utilities' sign is undetermined.
    """
    lowest = min((p.utility for p in ranked if p.utility is not None), default=0.0)
    rows = []
    for p in ranked.by_utility():
        score = lowest - (p.index + 1) if p.utility is None else p.utility
        rows.append((str(p.index) if p.passage.id is None else p.passage.id, score))
    return trec_lines(ranked.id, rows, "fastreader-moi", name="--format trec")
