"""fastreader rerank."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastreader.cli import options
from fastreader.cli.cluster import RayActorsOption, RayGpusOption, RayOption, pool_of
from fastreader.cli.inputs import Skipped, check_output, examples, model_settings, remaining, use_cache
from fastreader.cli.output import Writer
from fastreader.core.checks import check_choice
from fastreader.core.progress import track
from fastreader.data.result_log import ResultLog
from fastreader.data.write import trec_lines

if TYPE_CHECKING:
    from fastreader.passages.ranking import Reranked

_TOGETHER = 32  # questions that share a call, so that a result does not wait for the whole file


def rerank(
    file: options.FileArgument = None,
    question: options.QuestionOption = None,
    passage: options.PassageOption = None,
    model: options.ModelOption = "smollm2-135m",
    method: Annotated[
        str,
        typer.Option(help="query_likelihood (each passage alone), moi, or a baseline such as qg, pairwise, rankgpt."),
    ] = "query_likelihood",
    top_n: Annotated[
        int | None, typer.Option("--top-n", "-n", help="Number of passages returned.", min=1, show_default=False)
    ] = None,
    bias: Annotated[
        Path | None,
        typer.Option(help="A calibration for moi; by default the largest at hand.", show_default=False),
    ] = None,
    uncalibrated: Annotated[
        bool, typer.Option("--uncalibrated", help="Let moi rank by query likelihood without a calibration.")
    ] = False,
    seed: options.SeedOption = 0,
    template: options.TemplateOption = None,
    max_batch_tokens: options.MaxBatchTokensOption = None,
    output: options.OutputOption = None,
    resume: options.ResumeOption = False,
    limit: options.LimitOption = None,
    skip_errors: options.SkipErrorsOption = False,
    format: options.RankFormatOption = None,
    progress: options.ProgressOption = None,
    adapter: options.AdapterOption = None,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    precision: options.PrecisionOption = "fast",
    cache_dir: options.CacheOption = None,
    ray: RayOption = None,
    ray_actors: RayActorsOption = None,
    ray_gpus: RayGpusOption = None,
) -> None:
    """Order passages by their relevance to the question.

    By default a passage's relevance is what it adds to the likelihood of the question, each passage read alone.

    Examples:

      fastreader rerank questions.jsonl --top-n 3 --limit 3

      fastreader rerank -q "Who wrote Emma?" -p "Jane Austen wrote Emma." -p "Emma is a name."

      fastreader rerank questions.jsonl.gz --format trec > run.trec

      fastreader rerank questions.jsonl -o ranked.jsonl --ray auto --ray-actors 8 --ray-gpus 1
    """
    from fastreader.cli.tables.ranking import reranked_table
    from fastreader.moi import PositionBias
    from fastreader.moi.calibration.store import at_hand
    from fastreader.passages.ranking import RERANKERS
    from fastreader.passages.ranking.batches import rerank_many
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.reader import Reader

    use_cache(cache_dir)
    skip = Skipped()
    check_choice("--method", method, RERANKERS)
    check_output(output, file, resume, format)
    questions = examples(file, question, passage, None, limit, skip if skip_errors else None)
    prompts = Template.load(template) if template else Template()
    calibration = PositionBias.load(bias) if bias else None
    settings: dict[str, Any] = {"method": method, "top_n": top_n, "uncalibrated": uncalibrated, "seed": seed}
    pool = pool_of(ray, ray_actors, ray_gpus, _TOGETHER)
    placed = "moi" in method or method.endswith("-matched")
    loading: dict[str, Any] = {"device": device, "dtype": dtype, "precision": precision, "adapter": adapter}
    on_error = (lambda _, error: skip(str(error))) if skip_errors else None
    with ExitStack() as stack:
        log = None
        searches = output is not None and placed and calibration is None
        # Actors load their own; this process only one whose calibrations it looks for.
        reader = Reader.load(model, **loading) if pool is None or searches else None
        call = {**settings, "bias": calibration, "template": prompts, "max_batch_tokens": max_batch_tokens}
        if output is not None:
            kept = {**settings, "template": prompts.to_dict()} | model_settings(model, dtype, precision, adapter)
            kept["bias"] = calibration.to_dict() if placed and calibration is not None else None
            if searches:
                assert reader is not None
                kept["bias"] = at_hand(reader.describe(), prompts.digest())
            log = stack.enter_context(ResultLog(output, settings=kept, resume=resume))
        digests: dict[str, str] = {}
        advance = stack.enter_context(track("ranking", limit, "questions", progress))
        shown = options.RankFormat.table if format is None else format
        writer: Writer[Reranked] = Writer(None if log else shown.value, reranked_table, lambda r: r.to_dict())
        stack.enter_context(writer)
        left = remaining(questions, None, True, log, digests, scores=True)
        if pool is None:
            assert reader is not None
            groups = iter(lambda: list(islice(left, _TOGETHER)), [])
            results: Iterator[Reranked] = (
                r for g in groups for r in rerank_many(reader, g, on_error=on_error, progress=False, **call)
            )
        else:
            from fastreader.integrations import ray as actors

            source = actors.ReaderReference.of(model, **loading)
            results = actors.rerank(source, left, pool=pool, ordered=log is None, on_error=on_error, **call)
        for ranked in results:
            if log is not None:
                assert ranked.id is not None
                log.append(ranked.id, ranked.to_dict(), example=digests.pop(ranked.id))
            elif shown is options.RankFormat.trec:
                sys.stdout.writelines(_trec(ranked))
            else:
                writer.write(ranked)
            advance(1)
    skip.finish()


def _trec(ranked: Reranked) -> list[str]:
    """Return a TREC run's lines; passages without a value follow below the lowest."""
    values = [result.value for result in ranked if result.value is not None]
    lowest = min(values, default=0.0)
    rows = []
    for place, result in enumerate(ranked):
        score = result.relevance if not values else lowest - place if result.value is None else result.value
        rows.append((str(result.index) if result.passage.id is None else result.passage.id, score))
    return trec_lines(ranked.id, rows, f"fastreader-{ranked.method}", name="--format trec")
