"""Case: one answer as a measure gets it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastreader.core.protocol import ReaderProtocol
from fastreader.data import Example

Load = Callable[[str], ReaderProtocol]


@dataclass(frozen=True)
class Case:
    """One answer.

    Attributes:
        example: its question.
        answer: the text.
        trace: of its method; "order" lists the passages that were read.
        baseline: the answer of the study's baseline to the same question, by the same reader; None without one.
    """

    example: Example
    answer: str
    trace: Mapping[str, Any]
    baseline: str | None = None

    @property
    def read(self) -> list[int] | None:
        """Indices of the passages read, in reading order, or None if the trace names other passages or none."""
        order = self.trace.get("order")
        own = isinstance(order, list) and all(isinstance(i, int) for i in order)
        return order if own else None

    @property
    def gold(self) -> list[int]:
        """Indices of all gold passages."""
        return [i for i, passage in enumerate(self.example.passages) if passage.is_gold]


Measure = Callable[[Sequence[Case]], Sequence[float | None]]
"""From answers to numbers, larger is better; None if a question or answer lacks what the measure needs."""


def one_by_one(function: Callable[[Case], float | None]) -> Measure:
    """Return the measure of a function of one answer."""
    return lambda cases: [function(case) for case in cases]
