"""Where the gold passage stands, and what is answered (MoI, table 7): methods beside fixed places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.data.types import Example
from fastreader.errors import InputError
from fastreader.moi.gold import gold_of
from fastreader.moi.outcomes import MEASURES, Outcome, outcomes
from fastreader.moi.probe import moved
from fastreader.moi.types import FloatArray

if TYPE_CHECKING:
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.reader import Reader


@dataclass(frozen=True, eq=False)
class GoldRanks:
    """Where the gold passage stands in Q orders.

    Attributes:
        places: for each question the gold passage's place in reading order, from 0; None where it is not among them.
        passages: of each question.
    """

    places: list[int | None]
    passages: int

    @property
    def mrr(self) -> float:
        """Mean reciprocal rank of the gold passage in reading order; 0 for a question without it."""
        return float(np.mean([0.0 if p is None else 1 / (p + 1) for p in self.places]))

    @property
    def shares(self) -> FloatArray:
        """Share of the questions with the gold passage at each place: float64 [N]."""
        found = [p for p in self.places if p is not None]
        counts: FloatArray = np.bincount(found, minlength=self.passages) / len(self.places)
        return counts


def gold_ranks(orders: Sequence[Sequence[int]], gold: Sequence[int | None]) -> GoldRanks:
    """The gold passage's place in each order.

    Args:
        orders: [Q], of N passages each.
        gold: for each question the gold passage's index, or None.

    Raises:
        InputError: no orders, or other than one `gold` for each.
    """
    if not orders or len(orders) != len(gold):
        raise InputError(f"gold: expected one for each of the orders, at least one; got {len(gold)} for {len(orders)}")
    places = [None if g is None or g not in list(o) else list(o).index(g) for o, g in zip(orders, gold, strict=True)]
    return GoldRanks(places, len(orders[0]))


@dataclass(frozen=True)
class GoldPlaces:
    """Answers with the gold passage at each place.

    Attributes:
        ids: of the questions.
        outcomes: Q lists of N, question by place.
    """

    ids: list[str | None]
    outcomes: list[list[Outcome]]

    def by_place(self, measure: str = "nats") -> FloatArray:
        """float64 [Q, N] of one measure.

        Raises:
            InputError: no such measure.
        """
        if measure not in MEASURES:
            raise InputError(f"measure: expected one of {', '.join(MEASURES)}, got {measure!r}")
        return np.array([[getattr(o, measure) for o in row] for row in self.outcomes], dtype=np.float64)

    def to_dict(self) -> dict[str, Any]:
        """Means by place of every measure, and the single outcomes, as JSON values."""
        return {
            "means": {measure: self.by_place(measure).mean(axis=0).tolist() for measure in MEASURES},
            "ids": self.ids,
            "outcomes": [[o.to_dict() for o in row] for row in self.outcomes],
        }


def gold_places(
    reader: Reader,
    examples: Sequence[Example],
    *,
    template: Template | None = None,
    write: bool = True,
    max_new_tokens: int = 32,
    max_batch_tokens: int | None = None,
) -> GoldPlaces:
    """Read each question with its gold passage at every place, the others in the retriever's order.

    Args:
        reader: reads.
        examples: of one number of passages, with right answers and a gold passage (`is_gold`, else `has_answer`).
        template: the prompt's texts.
        write: also write answers.
        max_new_tokens: of an answer.
        max_batch_tokens: tokens in one pass at most.

    Raises:
        InputError: no example, one of another number of passages, or one without a gold passage.
    """
    if not examples:
        raise InputError("examples: expected at least one, got none")
    n = len(examples[0].passages)
    rows = []
    for q, example in enumerate(examples):
        gold = gold_of(example.passages)
        if gold is None or len(example.passages) != n:
            raise InputError(f"examples[{q}]: expected {n} passages, one of them gold, got {len(example.passages)}")
        found, _ = outcomes(
            reader,
            example,
            moved(gold, n).tolist(),
            template=template,
            write=write,
            max_new_tokens=max_new_tokens,
            max_batch_tokens=max_batch_tokens,
        )
        rows.append(found)
    return GoldPlaces([e.id for e in examples], rows)
