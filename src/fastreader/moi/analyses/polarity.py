"""Polarity: what is lost when a method's order is read in reverse (MoI, table 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.data.types import Example
from fastreader.errors import InputError
from fastreader.moi.outcomes import MEASURES, Outcome, outcomes

if TYPE_CHECKING:
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.reader import Reader


@dataclass(frozen=True)
class Polarity:
    """One method's orders over Q questions, and the same orders reversed.

    Attributes:
        name: of the method.
        forward, backward: an outcome for each question.
    """

    name: str
    forward: list[Outcome]
    backward: list[Outcome]

    def loss(self, measure: str = "nats") -> list[float]:
        """For each question, what reversing takes away: forward less backward, in the measure's unit.

        Raises:
            InputError: no such measure.
        """
        if measure not in MEASURES:
            raise InputError(f"measure: expected one of {', '.join(MEASURES)}, got {measure!r}")
        return [getattr(f, measure) - getattr(b, measure) for f, b in zip(self.forward, self.backward, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Means of the loss in every measure, and the single outcomes, as JSON values."""
        return {
            "name": self.name,
            "loss": {measure: float(np.mean(self.loss(measure))) for measure in MEASURES},
            "forward": [o.to_dict() for o in self.forward],
            "backward": [o.to_dict() for o in self.backward],
        }


def polarity(
    reader: Reader,
    examples: Sequence[Example],
    orders: Mapping[str, Sequence[Sequence[int]]],
    *,
    template: Template | None = None,
    write: bool = True,
    max_new_tokens: int = 32,
    max_batch_tokens: int | None = None,
) -> list[Polarity]:
    """Read every method's order of every question both ways.

    Args:
        reader: reads.
        examples: Q questions with passages and right answers.
        orders: for each method its order of each question's passages.
        template: the prompt's texts.
        write: also write answers; without, only the nats tell.
        max_new_tokens: of an answer.
        max_batch_tokens: tokens in one pass at most.

    Raises:
        InputError: a method without an order for every question.
    """
    for name, own in orders.items():
        if len(own) != len(examples):
            raise InputError(f"orders[{name!r}]: expected one for each of {len(examples)} questions, got {len(own)}")
    found = {name: Polarity(name, [], []) for name in orders}
    for q, example in enumerate(examples):
        asked = [order for own in orders.values() for order in (list(own[q]), list(own[q])[::-1])]
        results, _ = outcomes(
            reader,
            example,
            asked,
            template=template,
            write=write,
            max_new_tokens=max_new_tokens,
            max_batch_tokens=max_batch_tokens,
        )
        for i, name in enumerate(orders):
            found[name].forward.append(results[2 * i])
            found[name].backward.append(results[2 * i + 1])
    return list(found.values())
