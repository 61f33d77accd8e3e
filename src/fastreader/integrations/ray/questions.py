"""rerank and score: examples through a pool, resumable by id."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fastreader.core.checked import checked
from fastreader.core.checks import check_json, require
from fastreader.data import Example, Passage
from fastreader.data.fingerprints import digest
from fastreader.data.result_log import ResultLog
from fastreader.errors import FastreaderError
from fastreader.integrations.ray.actor import Work
from fastreader.integrations.ray.pool import ActorPool
from fastreader.integrations.ray.reference import ReaderLike, ReaderReference
from fastreader.integrations.ray.stream import read_items, stream
from fastreader.integrations.ray.tasks import RERANK, SCORE, Operation, QuestionTask, Result, as_example
from fastreader.passages.ranking import Reranked
from fastreader.scoring.results import PermutationScores

OnError = Callable[[str, FastreaderError], None]


@checked
def rerank(
    reader: ReaderLike,
    examples: Iterable[Example],
    *,
    pool: ActorPool | None = None,
    log: ResultLog | None = None,
    ordered: bool = False,
    on_error: OnError | None = None,
    **options: Any,
) -> Iterator[Reranked]:
    """Yield the ranking of each question as it comes, as `fastreader.rerank` returns it.

    Args:
        reader: what each actor loads: a name, a path, a `ReaderReference`, or a reader that was loaded from one.
        examples: questions with passages; one without an id gets its index as its id. All are held in Ray's store.
        pool: the actors; None for one on this machine.
        log: results are written to it, and questions that it holds are skipped; its settings are the caller's.
        ordered: yield in the order of the examples; a result then waits for those before it.
        on_error: called as (id, error) for a question that cannot be ranked, which is then left out; by default the
            error is raised.
        **options: further arguments of `fastreader.rerank`.

    Raises:
        NotReloadableError: if the reader was made from a model object, or an actor cannot load it.
        InputError: if an id occurs twice, or as `fastreader.rerank`.
        FastreaderError: if Ray returns no result for a question.
        MissingExtraError: if Ray is not installed.
    """
    return _run(RERANK, reader, examples, options, pool=pool, log=log, ordered=ordered, on_error=on_error)


@checked
def score(
    reader: ReaderLike,
    examples: Iterable[Example],
    *,
    pool: ActorPool | None = None,
    log: ResultLog | None = None,
    ordered: bool = False,
    on_error: OnError | None = None,
    **options: Any,
) -> Iterator[PermutationScores]:
    """Yield the scores of each question as they come, as `score_permutations` yields them.

    Args:
        reader, pool, log, ordered, on_error: see `rerank`.
        examples: questions with passages and candidates; ids as in `rerank`.
        **options: further arguments of `score_permutations`.

    Raises:
        NotReloadableError, FastreaderError, MissingExtraError: as `rerank`.
        InputError: if an id occurs twice, or as `score_permutations`.
    """
    return _run(SCORE, reader, examples, options, pool=pool, log=log, ordered=ordered, on_error=on_error)


def read_examples(batch: Any) -> list[Example]:
    """Return the examples of a batch."""
    return [as_example(values) for values in read_items(batch)]


def _run(
    operation: Operation[Result],
    reader: Any,
    examples: Iterable[Example],
    options: dict[str, Any],
    *,
    pool: ActorPool | None,
    log: ResultLog | None,
    ordered: bool,
    on_error: OnError | None,
) -> Iterator[Result]:
    pool = pool or ActorPool()
    work = Work.of(ReaderReference.of(reader), read_examples, QuestionTask(operation, options))
    digests, items = {}, []
    for example in _with_ids(examples):
        id = str(example.id)
        require(id not in digests, f"examples: expected ids that differ, got {id!r} twice")
        values = dataclasses.asdict(example)
        check_json(f"examples: {id!r}", values)
        digests[id] = digest(values)
        if log is None or not log.holds(id, digests[id]):
            items.append((id, values))
    for id, outcome in stream(pool, work, items, pool.batch_size, ordered):
        if isinstance(outcome, FastreaderError):
            if on_error is None:
                raise outcome
            on_error(id, outcome)
            continue
        found = operation.result_of(outcome)
        if log is not None:
            log.append(id, found.to_dict(), example=digests[id])
        yield found


def _with_ids(examples: Iterable[Example]) -> Iterator[Example]:
    for index, example in enumerate(examples):
        passages = [p if isinstance(p, Passage) else Passage(p) for p in example.passages]
        yield dataclasses.replace(example, passages=passages, id=str(index) if example.id is None else example.id)
