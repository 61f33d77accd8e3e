"""fastreader rerank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastreader.cli import options
from fastreader.cli.inputs import Resumed, Skipped, check_output
from fastreader.cli.output import Writer, write_trec
from fastreader.core.checks import check_choice
from fastreader.core.progress import track
from fastreader.data.result_log import ResultLog
from fastreader.data.write import trec_lines

if TYPE_CHECKING:
    from fastreader.passages.ranking import Reranked

_TOGETHER = 32  # questions that share a call, so that a result does not wait for the whole file


@options.spread
def rerank(
    *,
    questions: options.SkippableArguments,
    method: Annotated[
        str | None,
        typer.Option(
            help="relevance (the default of a model trained for it), query_likelihood (of other readers), yes_no, moi, "
            "or a baseline such as first-token, pairwise, rankgpt.",
            show_default=False,
        ),
    ] = None,
    instruction: Annotated[
        str | None,
        typer.Option(help="What makes a passage relevant, for relevance and yes_no.", show_default=False),
    ] = None,
    top_n: Annotated[
        int | None, typer.Option("--top-n", "-n", help="Number of passages returned.", min=1, show_default=False)
    ] = None,
    bias: Annotated[
        Path | None,
        typer.Option(
            help="A calibration for moi; by default the largest that is installed or shipped.", show_default=False
        ),
    ] = None,
    uncalibrated: Annotated[
        bool, typer.Option("--uncalibrated", help="Let moi rank by query likelihood without a calibration.")
    ] = False,
    seed: options.SeedOption = 0,
    prompt: options.PromptArguments,
    output: options.RankOutputArguments,
    reader: options.KeepingReaderArguments,
    actors: options.RayArguments,
) -> None:
    """Order passages by their relevance to the question.

    By default a passage is worth what it adds to the likelihood of the question, each passage read by itself. The table
    shows that value in nats per token of the question, relevance, which is its sigmoid (0.5: the passage adds nothing),
    and rank, the passage's place in the file. A model trained as a reranker gives its own score instead, and yes_no
    asks a chat model whether the passage helps. Other methods are relative to the question's other passages.

    Examples:

      fastreader rerank questions.jsonl --top-n 3 --limit 3

      fastreader rerank -q "Who wrote Emma?" -p "Jane Austen wrote Emma." -p "Emma is a name."

      fastreader rerank questions.jsonl --method yes_no --instruction "Find the passage that names a date."

      fastreader rerank questions.jsonl.gz --format trec > run.trec

      fastreader rerank questions.jsonl --passage-folder passages

      fastreader rerank questions.jsonl -o ranked.jsonl --ray auto --ray-actors 8 --ray-gpus 1
    """
    from fastreader.cli.tables.passages import reranked_table
    from fastreader.moi import PositionBias
    from fastreader.moi.calibration.store import at_hand
    from fastreader.passages.ranking import RERANKERS
    from fastreader.passages.ranking.batches import rerank_many

    skip = Skipped(questions.skip_errors)
    if method is not None:
        check_choice("--method", method, RERANKERS)
    check_output(output, questions.file)
    examples = questions.read(None, skip.on_error)
    prompts = prompt.texts()
    calibration = PositionBias.load(bias) if bias else None
    settings: dict[str, Any] = {"method": method, "top_n": top_n, "uncalibrated": uncalibrated, "seed": seed}
    settings["instruction"] = instruction
    pool = actors.pool(_TOGETHER)
    placed = method is not None and ("moi" in method or method.endswith("-matched"))
    with ExitStack() as stack:
        log = None
        searches = output.output is not None and placed and calibration is None
        # Actors load their own; this process only one whose calibrations it looks for.
        loaded = reader.load() if pool is None or searches else None
        call: dict[str, Any] = {**settings, "bias": calibration, "template": prompts, "on_error": skip.on_error}
        call |= {"max_batch_tokens": prompt.max_batch_tokens, "cache": reader.passage_cache()}
        if output.output is not None:
            recorded = {**settings, "template": prompts.to_dict(), **reader.settings()}
            recorded["bias"] = calibration.to_dict() if placed and calibration is not None else None
            if searches:
                assert loaded is not None
                recorded["bias"] = at_hand(loaded.describe(), prompts.digest())
            log = stack.enter_context(ResultLog(output.output, settings=recorded, resume=output.resume))
        kept = Resumed(log)
        advance = stack.enter_context(track("ranking", questions.limit, "questions", output.progress))
        shown = output.format or options.RankFormat.table
        writer: Writer[Reranked] = Writer(None if log else shown.value, reranked_table, lambda r: r.to_dict())
        stack.enter_context(writer)
        left = kept.left(examples, scores=True)
        if pool is None:
            assert loaded is not None
            groups = iter(lambda: list(islice(left, _TOGETHER)), [])
            results: Iterator[Reranked] = (r for g in groups for r in rerank_many(loaded, g, progress=False, **call))
        else:
            from fastreader.integrations import ray

            source = ray.ReaderReference.of(reader.model, **reader.loading)
            results = ray.rerank(source, left, pool=pool, ordered=log is None, **call)
        for ranked in results:
            if log is not None:
                kept.append(ranked.id, ranked.to_dict())
            elif shown is options.RankFormat.trec:
                write_trec(_trec(ranked))
            else:
                writer.write(ranked)
            advance(1)
    skip.finish()


def _trec(ranked: Reranked) -> list[str]:
    """Return a TREC run's lines, with passages without a value below the lowest."""
    values = [result.value for result in ranked if result.value is not None]
    lowest = min(values, default=0.0)
    rows = []
    for place, result in enumerate(ranked):
        score = result.relevance if not values else lowest - place if result.value is None else result.value
        rows.append((str(result.index) if result.passage.id is None else result.passage.id, score))
    return trec_lines(ranked.id, rows, f"fastreader-{ranked.method}", name="--format trec")
