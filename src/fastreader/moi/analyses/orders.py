"""Effect of the reading order on the answers: reversed orders (MoI, table 8) and the gold passage's place (table 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.core.checked import checked, checked_methods
from fastreader.core.checks import check_choice, expect
from fastreader.data.types import Example
from fastreader.moi.analyses.outcomes import MEASURES, Outcome, outcomes
from fastreader.moi.calibration.probe import gold_of, moved
from fastreader.moi.quantities.observations import FloatArray

if TYPE_CHECKING:
    from fastreader.core.protocol import ScoringReader


def _measured(results: Iterable[Outcome], measure: str) -> FloatArray:
    """Return one measure of each outcome: float64 [n]."""
    check_choice("measure", measure, MEASURES)
    return np.array([getattr(result, measure) for result in results], dtype=np.float64)


@checked_methods
@dataclass(frozen=True)
class Polarity:
    """One method's orders over Q questions, and the same orders reversed.

    Attributes:
        name: name of the method.
        forward, backward: an outcome for each question.
    """

    name: str
    forward: list[Outcome]
    backward: list[Outcome]

    def loss(self, measure: str = "nats") -> list[float]:
        """Return for each question the loss from reversing: forward less backward, in the measure's unit.

        Raises:
            InputError: if `measure` is unknown.
        """
        lost: list[float] = (_measured(self.forward, measure) - _measured(self.backward, measure)).tolist()
        return lost

    def to_dict(self) -> dict[str, Any]:
        """Return the mean loss in every measure and the single outcomes, as JSON values."""
        return {
            "name": self.name,
            "loss": {measure: float(np.mean(self.loss(measure))) for measure in MEASURES},
            "forward": [o.to_dict() for o in self.forward],
            "backward": [o.to_dict() for o in self.backward],
        }


@checked
def polarity(
    reader: ScoringReader, examples: Sequence[Example], orders: Mapping[str, Sequence[Sequence[int]]], **options: Any
) -> list[Polarity]:
    """Read every method's order of every question both ways.

    Args:
        reader: reads.
        examples: Q questions with passages and right answers.
        orders: for each method its order of each question's passages.
        options: same as `moi.outcomes.outcomes` (`template`, `write`, `max_new_tokens`, ...).

    Raises:
        InputError: if a method lacks an order for some question.
    """
    for name, own in orders.items():
        expect(len(own) == len(examples), f"orders[{name!r}]", f"one for each of {len(examples)} questions", len(own))
    found = {name: Polarity(name, [], []) for name in orders}
    for q, example in enumerate(examples):
        both_ways = [order for own in orders.values() for order in (list(own[q]), list(own[q])[::-1])]
        results, _ = outcomes(reader, example, both_ways, **options)
        for i, name in enumerate(orders):
            found[name].forward.append(results[2 * i])
            found[name].backward.append(results[2 * i + 1])
    return list(found.values())


@checked_methods
@dataclass(frozen=True, eq=False)
class GoldRanks:
    """The gold passage's place in Q orders.

    Attributes:
        places: for each question the gold passage's place in reading order, from 0; None if the order lacks it.
        num_passages: number of passages of each question.
    """

    places: list[int | None]
    num_passages: int

    @property
    def mrr(self) -> float:
        """Mean reciprocal rank of the gold passage in reading order, 0 for a question without it."""
        return float(np.mean([0.0 if p is None else 1 / (p + 1) for p in self.places]))

    @property
    def shares(self) -> FloatArray:
        """Share of the questions with the gold passage at each place: float64 [N]."""
        found = [p for p in self.places if p is not None]
        counts: FloatArray = np.bincount(found, minlength=self.num_passages) / len(self.places)
        return counts


@checked
def gold_ranks(orders: Sequence[Sequence[int]], gold: Sequence[int | None]) -> GoldRanks:
    """Find the gold passage's place in each order.

    Args:
        orders: [Q], of N passages each.
        gold: for each question the gold passage's index, or None.

    Raises:
        InputError: if there are no orders, or not one `gold` for each.
    """
    expect(0 < len(orders) == len(gold), "gold", f"one for each of {len(orders)} orders, at least one", len(gold))
    places = [None if g is None or g not in list(o) else list(o).index(g) for o, g in zip(orders, gold, strict=True)]
    return GoldRanks(places, len(orders[0]))


@checked_methods
@dataclass(frozen=True)
class GoldPlaces:
    """Answers with the gold passage at each place.

    Attributes:
        ids: ids of the questions.
        outcomes: Q lists of N, question by place.
    """

    ids: list[str | None]
    outcomes: list[list[Outcome]]

    def by_place(self, measure: str = "nats") -> FloatArray:
        """Return one measure: float64 [Q, N].

        Raises:
            InputError: if `measure` is unknown.
        """
        return np.stack([_measured(row, measure) for row in self.outcomes])

    def to_dict(self) -> dict[str, Any]:
        """Return the means by place in every measure and the single outcomes, as JSON values."""
        return {
            "means": {measure: self.by_place(measure).mean(axis=0).tolist() for measure in MEASURES},
            "ids": self.ids,
            "outcomes": [[o.to_dict() for o in row] for row in self.outcomes],
        }


@checked
def gold_places(reader: ScoringReader, examples: Sequence[Example], **options: Any) -> GoldPlaces:
    """Read each question with its gold passage at every place, the others in the retriever's order.

    Args:
        reader: reads.
        examples: with equal numbers of passages, right answers and a gold passage (`is_gold`, else `has_answer`).
        options: same as `moi.outcomes.outcomes` (`template`, `write`, `max_new_tokens`, ...).

    Raises:
        InputError: if there is no example, or one has another number of passages or no gold passage.
    """
    expect(len(examples) > 0, "examples", "at least one", examples)
    n = len(examples[0].passages)
    rows = []
    for q, example in enumerate(examples):
        count, gold = len(example.passages), gold_of(example.passages)
        expect(gold is not None and count == n, f"examples[{q}]", f"{n} passages, one of them gold", count)
        assert gold is not None
        rows.append(outcomes(reader, example, moved(gold, n).tolist(), **options)[0])
    return GoldPlaces([e.id for e in examples], rows)
