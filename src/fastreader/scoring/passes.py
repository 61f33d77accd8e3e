"""Examples run through the reader, many in a pass, and what came out for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fastreader.core.progress import track
from fastreader.core.tree import TreeStats
from fastreader.data import Example
from fastreader.errors import FastreaderError, InputError, NumericsError, OutOfBudgetError
from fastreader.reader.loglikelihood import SequenceScores
from fastreader.reader.session import Scorer
from fastreader.scoring.prepare import Job, Options, prepare, with_candidates
from fastreader.scoring.results import PermutationScores, TokenLogliks

OnError = Callable[[int, Example, FastreaderError], None]


def score_many(
    reader: Scorer,
    examples: Iterable[Example],
    candidates: Sequence[str] | None,
    options: Options,
    max_tokens: int | None,
    progress: bool | None,
    on_error: OnError | None,
) -> Iterator[PermutationScores]:
    """Scores of each example, in order; as many examples in a pass as `max_tokens` allows.

    An example that cannot be scored is told to `on_error` and left out, or its error raised after those before it
    have been given.
    """
    total = len(examples) if isinstance(examples, Sequence) else None
    with track("scoring", total, "questions", progress) as advance:
        pending: list[_Waiting] = []
        waiting = 0
        budget = max_tokens or reader.budget()
        source = enumerate(examples)
        failure: Exception | None = None
        while True:
            try:
                i, example = next(source)
            except StopIteration:
                break
            except Exception as error:  # of the caller's iterator; those read before it are scored first
                failure = error
                break
            try:
                if not isinstance(example, Example):
                    raise InputError(f"examples[{i}]: expected an Example, got {type(example).__name__}")
                name = f"example {i}" if example.id is None else f"example {i} (id {example.id})"
                job = prepare(reader, with_candidates(example, candidates), options, max_tokens, name)
            except FastreaderError as error:
                if on_error is None:
                    failure = error
                    break
                on_error(i, example, error)
                advance(1)
                continue
            if pending and waiting + job.stats.computed > budget:
                yield from _run(reader, pending, options, max_tokens, advance, on_error)
                pending, waiting = [], 0
            pending.append(_Waiting(i, name, example, job))
            waiting += job.stats.computed
        if pending:
            yield from _run(reader, pending, options, max_tokens, advance, on_error)
        if failure is not None:
            raise failure


@dataclass(frozen=True)
class _Waiting:
    """An example that waits for its pass."""

    index: int
    name: str
    example: Example
    job: Job


def _run(
    reader: Scorer,
    waiting: list[_Waiting],
    options: Options,
    max_tokens: int | None,
    advance: Callable[[int], None],
    on_error: OnError | None,
) -> Iterator[PermutationScores]:
    """One pass; where it fails, one an example, so that the error is told of the one that it belongs to."""
    jobs = [w.job for w in waiting]
    sequences = [sequence for job in jobs for sequence in job.sequences]
    try:
        scored = reader.score(sequences, max_tokens=max_tokens)
    except (InputError, OutOfBudgetError, NumericsError) as error:
        if len(waiting) > 1:
            for one in waiting:
                yield from _run(reader, [one], options, max_tokens, advance, on_error)
            return
        located = type(error)(f"{waiting[0].name}: {error}")
        if on_error is None:
            raise located from error
        on_error(waiting[0].index, waiting[0].example, located)
        advance(1)
        return
    for result in results_of(reader, jobs, options, scored):
        advance(1)
        yield result


def results_of(reader: Scorer, jobs: list[Job], options: Options, scores: SequenceScores) -> list[PermutationScores]:
    """The scores of each job, from those of all their sequences one after another."""
    results, start = [], 0
    for job in jobs:
        stats = scores.stats if len(jobs) == 1 else job.stats
        results.append(_result(reader, job, options, scores, start, stats))
        start += len(job.sequences)
    return results


def _result(
    reader: Scorer, job: Job, options: Options, scores: SequenceScores, start: int, stats: TreeStats
) -> PermutationScores:
    design, pieces = job.fitted.design, job.fitted.pieces
    rows, count = len(design.permutations), len(pieces.candidates)
    width = 1 + count + int(options.score_passages)
    index = start + np.arange(rows * width).reshape(rows, width)
    questions, answers = index[:, 0], index[:, 1 : 1 + count]
    priors = start + rows * width + np.arange(count if options.prior else 0)
    alone = np.arange(start + rows * width + len(priors), start + len(job.sequences))
    tokens = None
    if options.token_logliks:
        values = scores.token_logprobs
        tokens = TokenLogliks(
            question=[values[i].tolist() for i in questions],
            candidates=[[values[i].tolist() for i in row] for row in answers],
            passages=[values[i].tolist() for i in index[:, -1]] if options.score_passages else None,
        )
    return PermutationScores(
        question=job.example.question,
        candidates=[] if options.question_only else list(job.example.candidates),
        permutations=design.permutations,
        loglik=scores.logprob[answers],
        question_loglik=scores.logprob[questions],
        candidate_tokens=np.array([len(c) for c in pieces.candidates], dtype=np.int64),
        question_tokens=int(scores.tokens[questions[0]]),
        passages_tokens=np.array([len(pieces.body(o)) for o in design.permutations.tolist()], dtype=np.int64),
        greedy=scores.greedy[answers],
        stats=stats,
        seconds=scores.seconds,
        reader=reader.describe(),
        design=design.name,
        passages_loglik=scores.logprob[index[:, -1]] if options.score_passages else None,
        prior_loglik=scores.logprob[priors] if options.prior else None,
        token_logliks=tokens,
        dropped_passages=job.fitted.dropped,
        truncated_tokens=job.fitted.truncated,
        id=job.example.id,
        alone_loglik=scores.logprob[alone] if options.alone else None,
        template=options.template.digest(),
    )
