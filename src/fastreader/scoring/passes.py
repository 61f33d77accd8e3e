"""Run examples through the reader, many in a pass, and build a result for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fastreader.core.checks import expect
from fastreader.core.halving import by_halves
from fastreader.core.progress import track
from fastreader.core.protocol import ScoringReader, SequenceScores
from fastreader.core.tree import TreeStats
from fastreader.data import Example
from fastreader.data.arguments import make_example
from fastreader.data.types import place_of
from fastreader.errors import FastreaderError, InputError, NumericsError, OutOfBudgetError
from fastreader.scoring.known_passages import score_after
from fastreader.scoring.prepare import ScoreOptions, ScoringJob, prepare
from fastreader.scoring.results import PermutationScores, TokenLogprobs

OnError = Callable[[int, Example, FastreaderError], None]


def score_many(
    reader: ScoringReader,
    examples: Iterable[Example],
    candidates: Sequence[str] | None,
    options: ScoreOptions,
    progress: bool | None,
    on_error: OnError | None,
) -> Iterator[PermutationScores]:
    """Yield the scores of each example, in order.

    As many examples share a pass as `max_batch_tokens` allows. An example that cannot be scored is passed to `on_error`
    and left out; without `on_error` its error is raised after the results before it were yielded.
    """
    total = len(examples) if isinstance(examples, Sequence) else None
    with track("scoring", total, "questions", progress) as advance:
        pending: list[_Waiting] = []
        waiting = 0
        budget = options.max_batch_tokens or reader.budget()
        source = enumerate(examples)
        failure: Exception | None = None
        while True:
            try:
                i, example = next(source)
            except StopIteration:
                break
            except Exception as error:  # raised by the caller's iterator; examples read before it are scored first
                failure = error
                break
            try:
                expect(isinstance(example, Example), f"examples[{i}]", "an Example", example)
                name = f"example {i} ({place})" if (place := place_of(example)) else f"example {i}"
                job = prepare(reader, make_example(example, None, candidates, where=name), options, name)
            except FastreaderError as error:
                if on_error is None:
                    failure = error
                    break
                on_error(i, example, error)
                advance(1)
                continue
            if pending and waiting + job.stats.computed_tokens > budget:
                yield from _run(reader, pending, advance, on_error)
                pending, waiting = [], 0
            pending.append(_Waiting(i, name, example, job))
            waiting += job.stats.computed_tokens
        if pending:
            yield from _run(reader, pending, advance, on_error)
        if failure is not None:
            raise failure


@dataclass(frozen=True)
class _Waiting:
    """An example waiting for its pass."""

    index: int
    name: str
    example: Example
    job: ScoringJob


def _run(
    reader: ScoringReader,
    waiting: list[_Waiting],
    advance: Callable[[int], None],
    on_error: OnError | None,
) -> Iterator[PermutationScores]:
    """Run one pass, or by halves if it fails, so that the error names its own example."""

    def scored(part: Sequence[_Waiting]) -> list[PermutationScores]:
        return score_jobs(reader, [each.job for each in part])

    results = by_halves(waiting, scored, (InputError, OutOfBudgetError, NumericsError))
    for each, result in zip(waiting, results, strict=True):
        if isinstance(result, PermutationScores):
            advance(1)
            yield result
            continue
        located = type(result)(f"{each.name}: {result}")
        if on_error is None:
            raise located from result
        on_error(each.index, each.example, located)
        advance(1)


def score_jobs(reader: ScoringReader, jobs: list[ScoringJob]) -> list[PermutationScores]:
    """Score the sequences of all jobs together, or the sequences of a single job by its plan."""
    alone = len(jobs) == 1
    sequences, ends = [], []
    for job in jobs:
        sequences += job.sequences
        ends += job.ends
    scores = score_after(
        reader,
        sequences,
        ends,
        max_batch_tokens=jobs[0].options.max_batch_tokens,
        trees=jobs[0].trees if alone else None,
    )
    about = reader.describe()
    results, start = [], 0
    for job in jobs:
        results.append(_result(about, job, scores, start, scores.stats if alone else job.stats))
        start += len(job.sequences)
    return results


def _result(
    reader: dict[str, str], job: ScoringJob, scores: SequenceScores, start: int, stats: TreeStats
) -> PermutationScores:
    options = job.options
    design, pieces = job.fitted.design, job.fitted.pieces
    rows, count = len(design.permutations), len(pieces.candidates)
    width = 1 + count + int(options.score_passages)
    index = start + np.arange(rows * width).reshape(rows, width)
    questions, answers = index[:, 0], index[:, 1 : 1 + count]
    closed_book = start + rows * width + np.arange(count if options.closed_book else 0)
    alone = np.arange(start + rows * width + len(closed_book), start + len(job.sequences))
    tokens = None
    if options.token_logprobs:
        values = scores.token_logprobs
        tokens = TokenLogprobs(
            question=[values[i].tolist() for i in questions],
            candidates=[[values[i].tolist() for i in row] for row in answers],
            passages=[values[i].tolist() for i in index[:, -1]] if options.score_passages else None,
        )
    return PermutationScores(
        question=job.example.question,
        candidates=[] if options.question_only else list(job.example.candidates),
        permutations=design.permutations,
        logprobs=scores.logprob[answers],
        question_logprobs=scores.logprob[questions],
        candidate_tokens=np.array(list(map(len, pieces.candidates)), dtype=np.int64),
        question_tokens=int(scores.num_tokens[questions[0]]),
        passages_tokens=np.array(list(map(pieces.body_length, design.permutations.tolist())), dtype=np.int64),
        greedy=scores.is_greedy[answers],
        stats=stats,
        seconds=scores.seconds,
        reader=dict(reader),
        design=design.name,
        passages_logprobs=scores.logprob[index[:, -1]] if options.score_passages else None,
        closed_book_logprobs=scores.logprob[closed_book] if options.closed_book else None,
        token_logprobs=tokens,
        dropped_passages=job.fitted.dropped,
        truncated_tokens=job.fitted.truncated,
        id=job.example.id,
        query_logprobs=scores.logprob[alone] if options.query_likelihood else None,
        template_digest=options.template.digest(),
    )
