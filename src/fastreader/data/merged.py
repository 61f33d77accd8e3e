"""Reciprocal rank fusion: several rankings of one question's passages as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastreader.data.types import Passage

K = 60.0
"""The constant of Cormack et al. (2009)."""


def merged(
    rankings: Sequence[Sequence[Passage]], *, k: float = K, weights: Sequence[float] | None = None, by_id: bool = True
) -> list[Passage]:
    """Return every passage of the rankings once, by falling sum over rankings of ``weight / (k + its rank)``.

    Args:
        rankings: lists of passages, best first, as `fastreader.fuse` describes them.
        k: constant of the method.
        weights: one for each ranking; None gives all of them 1.
        by_id: whether passages with ids are the same if their ids are; False, for rankings of different collections,
            compares title and text alone.
    """
    found: dict[tuple[str, ...], Passage] = {}
    scores: dict[tuple[str, ...], float] = {}
    for passages, weight in zip(rankings, weights or [1.0] * len(rankings), strict=True):
        ranking: dict[tuple[str, ...], Passage] = {}
        for passage in passages:
            ranking.setdefault(
                (passage.id,) if by_id and passage.id is not None else (passage.title, passage.text), passage
            )
        for rank, (key, passage) in enumerate(ranking.items(), 1):
            found.setdefault(key, passage)
            scores[key] = scores.get(key, 0.0) + weight / (k + rank)
    return [replace(found[key], score=scores[key]) for key in sorted(found, key=lambda key: -scores[key])]
