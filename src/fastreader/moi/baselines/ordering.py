"""Ordering: the result of a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked
from fastreader.core.checks import expect
from fastreader.core.tree import TreeStats
from fastreader.data.types import Passage
from fastreader.moi.quantities.observations import FloatArray
from fastreader.moi.quantities.utilities import descending

NOTHING_READ = TreeStats(0, 0, 0, 0)


@checked
@dataclass(frozen=True, eq=False)
class Ordering:
    """A reading order of one question's passages.

    Attributes:
        order: passage indices in reading order, every passage once.
        name: name of the method.
        scores: float64 [N], larger is better, in the method's own unit; None if the method has no scores.
        stats: tokens spent on finding the order, without the final reading; zero if nothing was read.
        details: further findings of the method, as JSON values.
    """

    order: list[int]
    name: str
    scores: FloatArray | None = None
    stats: TreeStats = NOTHING_READ
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole = sorted(self.order) == list(range(len(self.order)))
        expect(whole, "Ordering.order", "every passage once", self.order)

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes as JSON values."""
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
    """Order by falling score, and ties as the retriever did."""
    values = np.asarray(scores, dtype=np.float64)
    return Ordering(descending(values).tolist(), name, values, stats, dict(details or {}))


def check_passages(passages: Sequence[Passage]) -> int:
    """Return the number of passages, checked to be `Passage`s and at least one."""
    listed = isinstance(passages, (list, tuple)) and bool(passages)
    expect(listed, "passages", "a list of at least one passage", passages)
    for p, passage in enumerate(passages):
        expect(isinstance(passage, Passage), f"passages[{p}]", "a Passage", passage)
    return len(passages)


def show(passage: Passage) -> str:
    """Return a passage as text, after its title if it has one."""
    title = passage.title.strip()
    return f"{title}: {passage.text}" if title else passage.text
