"""Case: one answer as a measure gets it, and the passages that it read or cited."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastreader.core.protocol import ReaderProtocol
from fastreader.data import Example
from fastreader.moi.baselines.ordering import show
from fastreader.statistics.measures.citations import cited, support

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


def shown(case: Case) -> list[str] | None:
    """Return the passages as the prompt numbered them, or None if the trace does not tell."""
    return None if case.read is None else [show(case.example.passages[i]) for i in case.read]


def gold_read(case: Case) -> float | None:
    """Return the share of the question's gold passages that were read, or None if no passage is gold."""
    return support(case.read, case.gold).recall if case.gold and case.read is not None else None


def gold_cited(case: Case) -> float | None:
    """Return the F1 of the cited passages against all gold ones, or None if no passage is gold."""
    if not case.gold or case.read is None:
        return None
    return support([case.read[i] for i in cited(case.answer, len(case.read))], case.gold).f1


def citations(case: Case, count: Callable[..., float | None], *supports: Callable[[str, str], float]) -> float | None:
    """Return a count of citations, by containment unless `supports` judges support."""
    passages = shown(case)
    return None if passages is None else count(case.answer, passages, *supports)
