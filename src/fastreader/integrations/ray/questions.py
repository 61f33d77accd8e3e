"""Rerank and score questions through a pool: examples, resumable by id, or Ray Datasets."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastreader.core.checked import checked
from fastreader.core.checks import check_json, require
from fastreader.core.tree import TreeStats
from fastreader.data import Example, Passage
from fastreader.data.fingerprints import digest
from fastreader.data.formats import parse_row
from fastreader.data.result_log import ResultLog
from fastreader.errors import FastreaderError
from fastreader.integrations.ray.actor import Actor, Outcome, ReaderLike, ReaderReference, Work, read_items, stream
from fastreader.integrations.ray.pool import ActorPool, require_ray
from fastreader.passages.ranking.batches import rerank_many
from fastreader.passages.ranking.results import Reranked, RerankResult
from fastreader.scoring.api import score_permutations
from fastreader.scoring.results import PermutationScores

Result = TypeVar("Result", Reranked, PermutationScores)


@dataclass(frozen=True)
class Operation(Generic[Result]):
    """A function of questions that runs in actors, and how its results leave their process.

    Attributes:
        run: called with a reader, examples, `on_error`, `progress` and its own options; yields results.
        values_of: returns a result as JSON values.
        result_of: returns the result of such values.
    """

    run: Callable[..., Iterable[Result]]
    values_of: Callable[[Result], dict[str, Any]]
    result_of: Callable[[dict[str, Any]], Result]


@dataclass(frozen=True)
class QuestionTask:
    """An operation with its options, run on the examples of a batch."""

    operation: Operation[Any]
    options: dict[str, Any]

    def __post_init__(self) -> None:
        pickle.dumps(self.options.get("cache"))  # raises now what would raise in threads of Ray

    def __call__(self, reader: Any, examples: list[Example]) -> Iterator[Outcome]:
        """Yield the values of each example's result, errors last."""
        failed: list[Outcome] = []

        def keep(*failure: Any) -> None:
            *_, example, error = failure  # `score_permutations` also passes an index
            failed.append((example.id, error))

        for result in self.operation.run(reader, examples, on_error=keep, progress=False, **self.options):
            yield result.id, self.operation.values_of(result)
        yield from failed


def as_example(values: dict[str, Any]) -> Example:
    """Return the example whose `dataclasses.asdict` gave these values."""
    return Example(**{**values, "passages": [Passage(**passage) for passage in values["passages"]]})


def as_reranked(values: dict[str, Any]) -> Reranked:
    """Return the ranking whose `dataclasses.asdict` gave these values."""
    results = [RerankResult(**{**result, "passage": Passage(**result["passage"])}) for result in values["results"]]
    return Reranked(**{**values, "results": results, "stats": TreeStats(**values["stats"])})


RERANK = Operation(rerank_many, dataclasses.asdict, as_reranked)
SCORE = Operation(score_permutations, PermutationScores.to_dict, PermutationScores.from_dict)


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


def rerank_dataset(dataset: Any, reader: ReaderLike, *, pool: ActorPool | None = None, **options: Any) -> Any:
    """Return a Dataset with the ranking of each question of a Dataset, computed when it is read.

    Args:
        dataset: rows of any format that `load_examples` reads, such as question and ctxs.
        reader: what each actor loads: a name, a path, a `ReaderReference`, or a reader that was loaded from one.
        pool: the actors; its `address` does not count here. None for one actor.
        **options: further arguments of `fastreader.rerank`.

    Returns:
        Rows of id, result (the attributes of a `Reranked` as JSON), error (type and message as JSON if there is no
        result), and fatal, whether the actor could not load the reader.

    Raises:
        NotReloadableError: if the reader was made from a model object.
        MissingExtraError: if Ray is not installed.
    """
    return _mapped(dataset, reader, pool, RERANK, options)


def score_dataset(dataset: Any, reader: ReaderLike, *, pool: ActorPool | None = None, **options: Any) -> Any:
    """Return a Dataset with the scores of each question of a Dataset, computed when it is read.

    Args:
        dataset: rows of any format that `load_examples` reads, with candidates.
        reader, pool: see `rerank_dataset`.
        **options: further arguments of `score_permutations`.

    Returns:
        Rows as `rerank_dataset` gives; result is `PermutationScores.to_dict` as JSON.

    Raises:
        NotReloadableError, MissingExtraError: as `rerank_dataset`.
    """
    return _mapped(dataset, reader, pool, SCORE, options)


def read_rows(batch: Any) -> list[Example]:
    """Return the examples of a batch, in which pyarrow puts None for a key that a row lacks.

    Raises:
        InputError: if a row is not of a known format.
    """
    return [parse_row(_present(row)) for row in batch.to_pylist()]


def _mapped(
    dataset: Any, reader: Any, pool: ActorPool | None, operation: Operation[Any], options: dict[str, Any]
) -> Any:
    require_ray()
    work = Work.of(ReaderReference.of(reader), read_rows, QuestionTask(operation, options))
    pool = pool or ActorPool()
    return pool.map(dataset, Actor, {"work": work}, pool.batch_size)


def _present(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _present(inner) for key, inner in value.items() if inner is not None}
    return [_present(inner) for inner in value] if isinstance(value, list) else value
