"""The vote of validity and ranking over the candidates (Eq. 6)."""

from __future__ import annotations

from collections.abc import Sequence


def vote(validity: Sequence[float] | None, ranking: Sequence[float] | None, count: int) -> list[float]:
    """v + r for each of `count` candidates; what is None was not used and counts nothing.

    >>> vote([1.0, 0.0], [0.5, 0.5], 2)
    [1.5, 0.5]
    """
    return [(validity[i] if validity else 0.0) + (ranking[i] if ranking else 0.0) for i in range(count)]


def winner(scores: Sequence[float]) -> int:
    """Index of the largest score; the earliest of equal ones."""
    return max(range(len(scores)), key=lambda i: (scores[i], -i))
