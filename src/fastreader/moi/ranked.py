"""Ranked: the passages of a question in reading order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastreader.data.types import Passage
from fastreader.moi.cost import Cost
from fastreader.moi.types import Observations, PositionBias, Utilities


@dataclass(frozen=True)
class RankedPassage:
    """One passage in reading order.

    Attributes:
        passage: as it was given.
        index: its place in the retriever's order, from 0.
        utility: posterior mean, nats against the mean of the question's passages; None where it was not scored.
        relevance: sigmoid of the utility, in (0, 1).
        interval: posterior interval of the utility; None where there is none (joint solve).
        p_best: as in `Utilities`; None where there is none (joint solve).
    """

    passage: Passage
    index: int
    utility: float | None = None
    relevance: float | None = None
    interval: tuple[float, float] | None = None
    p_best: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, eq=False)
class Ranked:
    """Passages in reading order; iterating gives `RankedPassage`s.

    Attributes:
        question: its text.
        passages: in reading order; the last `tail` keep the retriever's order unscored.
        order: "matched" or "descending"; "given" for a single passage.
        bias_source: where the bias is from: "given", "cached", "shipped", or "none: random prefixes".
        bias: the calibration used; None where there was none.
        utilities: of the passages that were scored, in the retriever's order; None for a single passage.
        cost: tokens.
        tail: passages beyond `max_passages`.
        note: cautions; empty where all is well.
        observations: what was scored; None for a single passage.
        id: the question's identifier.
    """

    question: str
    passages: list[RankedPassage]
    order: str
    bias_source: str
    bias: PositionBias | None
    utilities: Utilities | None
    cost: Cost
    tail: int = 0
    note: str = ""
    observations: Observations | None = None
    id: str | None = None

    def __len__(self) -> int:
        return len(self.passages)

    def __iter__(self) -> Iterator[RankedPassage]:
        return iter(self.passages)

    def __getitem__(self, place: int) -> RankedPassage:
        return self.passages[place]

    @property
    def indices(self) -> list[int]:
        """The retriever's indices in reading order."""
        return [p.index for p in self.passages]

    def by_utility(self) -> list[RankedPassage]:
        """The scored passages by falling utility, then the tail: a ranking, where the reading order is none.

        Raises:
            InputError: the bias's sign is undetermined, so that it may be the reverse.
        """
        if self.utilities is None:
            return list(self.passages)
        at = {p.index: p for p in self.passages}
        ranked = self.utilities.order("descending").tolist()
        return [at[i] for i in ranked] + self.passages[len(ranked) :]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values, except the bias and the observations."""
        return {
            "id": self.id,
            "question": self.question,
            "order": self.order,
            "bias_source": self.bias_source,
            "note": self.note,
            "tail": self.tail,
            "cost": self.cost.to_dict(),
            "passages": [p.to_dict() for p in self.passages],
            "utilities": None if self.utilities is None else self.utilities.to_dict(),
        }
