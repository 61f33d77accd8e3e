"""What actors do with a batch of questions: the functions that run on one machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastreader.core.tree import TreeStats
from fastreader.data import Example, Passage
from fastreader.integrations.ray.actor import Outcome
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
