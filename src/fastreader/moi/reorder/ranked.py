"""Ranked: the passages of a question in reading order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastreader.core.checked import checked_methods
from fastreader.core.frames import listing
from fastreader.core.words import counted
from fastreader.data.record import Record
from fastreader.data.types import Passage
from fastreader.moi.quantities.observations import Observations
from fastreader.moi.quantities.position_bias import PositionBias
from fastreader.moi.quantities.utilities import Utilities
from fastreader.moi.reorder.planning import Cost


@checked_methods
@dataclass(frozen=True)
class RankedPassage(Record):
    """One passage in reading order.

    Attributes:
        passage: as it was given.
        index: its place in the retriever's order, from 0.
        utility: posterior mean, nats against the mean of the question's passages; None if it was not scored.
        relevance: sigmoid of the utility, in (0, 1); None if it was not scored.
        interval: posterior interval of the utility; None for a joint solve.
        p_best: as in `Utilities`; None for a joint solve.
    """

    passage: Passage
    index: int
    utility: float | None = None
    relevance: float | None = None
    interval: tuple[float, float] | None = None
    p_best: float | None = None

    def _line(self, place: int) -> str:
        utility = "" if self.utility is None else f"{self.utility:+.2f}"
        p_best = "" if self.p_best is None else f"{self.p_best:.2f}"
        text = f"{self.passage.title} {self.passage.text}".strip()
        return f"{place:5}  {self.index:5}  {utility:>7}  {p_best:>6}  {text}"


@checked_methods
@dataclass(frozen=True, eq=False)
class Ranked:
    """Passages in reading order, as an iterable of `RankedPassage`s.

    Attributes:
        question: its text.
        passages: in reading order; the last `tail` keep the retriever's order unscored.
        order: "matched", "descending", or "given": the retriever's, for a single passage or without a calibration.
        bias_source: source of the bias: "given", "cached", "shipped", "pool", "none: query likelihood" or "none: joint
            solve" (of orderings that the caller gave).
        bias: the calibration used; None without one.
        utilities: of the scored passages, in the retriever's order; None for a single passage.
        cost: in tokens.
        tail: number of passages beyond `max_passages`.
        note: cautions; empty if there is nothing to report.
        observations: the scores; None for a single passage.
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

    def __repr__(self) -> str:
        """Return the ranking on at most 18 lines, one line a passage."""
        head = [
            f"Ranked: {counted(len(self), 'passage')} in {self.order} order; bias: {self.bias_source}; "
            f"{self.cost.computed_tokens:,} tokens computed",
            f"question: {self.question}",
            "place  index  utility  p_best  passage",
        ]
        return listing(head, (p._line(place) for place, p in enumerate(self, 1)), len(self), self.note)

    @property
    def indices(self) -> list[int]:
        """The retriever's indices in reading order."""
        return [p.index for p in self.passages]

    def by_utility(self) -> list[RankedPassage]:
        """Return the scored passages by falling utility, then the tail, which is not the reading order.

        Raises:
            InputError: if the bias's sign is undetermined, since the ranking may then be reversed.
        """
        if self.utilities is None:
            return list(self.passages)
        at = {p.index: p for p in self.passages}
        ranked = self.utilities.order("descending").tolist()
        return [at[i] for i in ranked] + self.passages[len(ranked) :]

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the bias as JSON values, with the scores of a call that fed a pool as "pooled"."""
        o = self.observations
        pooled = {}
        if self.bias is None and o is not None and o.qg is not None:
            pooled["pooled"] = {name: getattr(o, name).tolist() for name in ("values", "permutations", "qg")}
        return {
            "id": self.id,
            "question": self.question,
            "order": self.order,
            "bias_source": self.bias_source,
            "note": self.note,
            "tail": self.tail,
            "cost": self.cost.to_dict(),
            "passages": [p.to_dict() for p in self.passages],
            **pooled,
            "utilities": None if self.utilities is None else self.utilities.to_dict(),
        }
