"""What actors do with a batch of questions: the functions that run on one machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastreader.core.tree import TreeStats
from fastreader.data import Example, Passage
from fastreader.errors import FastreaderError
from fastreader.integrations.ray.actor import Outcome
from fastreader.passages.ranking.batches import rerank_many
from fastreader.passages.ranking.results import Reranked, RerankResult
from fastreader.scoring.api import score_permutations
from fastreader.scoring.results import PermutationScores


@dataclass(frozen=True)
class RerankTask:
    """Rank the passages of each example; `options` are those of `fastreader.rerank`."""

    options: dict[str, Any]

    def __call__(self, reader: Any, examples: list[Example]) -> Iterator[Outcome]:
        """Yield the attributes of a `Reranked` for each example, errors last."""
        failed: list[Outcome] = []

        def keep(example: Example, error: FastreaderError) -> None:
            failed.append((example.id, error))

        for ranked in rerank_many(reader, examples, on_error=keep, progress=False, **self.options):
            yield ranked.id, dataclasses.asdict(ranked)
        yield from failed


@dataclass(frozen=True)
class ScoreTask:
    """Score the candidates of each example; `options` are those of `score_permutations`."""

    options: dict[str, Any]

    def __call__(self, reader: Any, examples: list[Example]) -> Iterator[Outcome]:
        """Yield the values of `PermutationScores.to_dict` for each example, errors last."""
        failed: list[Outcome] = []

        def keep(_index: int, example: Example, error: FastreaderError) -> None:
            failed.append((example.id, error))

        for scores in score_permutations(reader, examples, on_error=keep, progress=False, **self.options):
            yield scores.id, scores.to_dict()
        yield from failed


def as_example(values: dict[str, Any]) -> Example:
    """Return the example whose `dataclasses.asdict` gave these values."""
    return Example(**{**values, "passages": [Passage(**passage) for passage in values["passages"]]})


def as_reranked(values: dict[str, Any]) -> Reranked:
    """Return the ranking whose `dataclasses.asdict` gave these values."""
    results = [RerankResult(**{**result, "passage": Passage(**result["passage"])}) for result in values["results"]]
    return Reranked(**{**values, "results": results, "stats": TreeStats(**values["stats"])})


def as_scores(values: dict[str, Any]) -> PermutationScores:
    """Return the scores whose `to_dict` gave these values."""
    return PermutationScores.from_dict(values)
