"""Ordering: what a baseline gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.core.tree import TreeStats
from fastreader.data.types import Passage
from fastreader.errors import InputError
from fastreader.moi.order import descending

FloatArray = npt.NDArray[np.float64]
NOTHING_READ = TreeStats(0, 0, 0, 0)


@dataclass(frozen=True, eq=False)
class Ordering:
    """A reading order of one question's passages.

    Attributes:
        order: passage indices in reading order, every passage once.
        name: of the method.
        scores: float64 [N], larger is better, in the method's own unit; None where it scores nothing.
        stats: tokens that finding the order took, zero where nothing was read; the final reading is not in it.
        details: what else the method found out, JSON values.
    """

    order: list[int]
    name: str
    scores: FloatArray | None = None
    stats: TreeStats = NOTHING_READ
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.order))):
            raise InputError(f"Ordering.order: expected every passage once, got {self.order}")

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "order": self.order,
            "name": self.name,
            "scores": None if self.scores is None else self.scores.tolist(),
            "total_tokens": self.stats.total_tokens,
            "computed_tokens": self.stats.computed_tokens,
            "details": dict(self.details),
        }


def by_score(
    name: str, scores: npt.ArrayLike, stats: TreeStats = NOTHING_READ, details: Mapping[str, Any] | None = None
) -> Ordering:
    """The best first, ties in the retriever's order."""
    values = np.asarray(scores, dtype=np.float64)
    return Ordering(descending(values).tolist(), name, values, stats, dict(details or {}))


def check_passages(passages: Sequence[Passage]) -> int:
    """How many passages there are.

    Raises:
        InputError: none, or something that is no `Passage`.
    """
    if not isinstance(passages, (list, tuple)) or not passages:
        raise InputError(f"passages: expected a list of at least one passage, got {passages!r}")
    for p, passage in enumerate(passages):
        if not isinstance(passage, Passage):
            raise InputError(f"passages[{p}]: expected a Passage, got {type(passage).__name__}")
    return len(passages)


def show(passage: Passage) -> str:
    """A passage as text, its title before it where it has one."""
    title = passage.title.strip()
    return f"{title}: {passage.text}" if title else passage.text
