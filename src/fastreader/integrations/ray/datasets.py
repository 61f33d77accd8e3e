"""rerank_dataset and score_dataset: Ray Datasets of questions to Ray Datasets of results."""

from __future__ import annotations

from typing import Any

from fastreader.data import Example
from fastreader.data.rows import parse_row
from fastreader.integrations.ray.actor import Actor, Work
from fastreader.integrations.ray.pool import ActorPool, require_ray
from fastreader.integrations.ray.reference import ReaderLike, ReaderReference
from fastreader.integrations.ray.tasks import RERANK, SCORE, Operation, QuestionTask


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
