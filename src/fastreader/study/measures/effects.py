"""Measures of what a reader's passages do: the order alone, and passages that distract."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastreader.core.checks import expect
from fastreader.core.protocol import ScoringReader
from fastreader.errors import ContextOverflowError
from fastreader.noise.distraction import distracting_effects
from fastreader.scoring.sensitivity import sensitivity
from fastreader.study.measures.case import Case, Load, Measure

Of = Callable[[ScoringReader, Case], float | None]


def order_range(model: str, load: Load) -> Measure:
    """Return by how many nats the order of all passages moves log P(answer), over the cyclic orders, None without one.

    Args:
        model: the reader that reads them, by name.
        load: returns a reader by name.
    """

    def of(reader: ScoringReader, case: Case) -> float | None:
        if not case.answer.strip():
            return None
        return float(sensitivity(reader, case.example.question, case.example.passages, [case.answer]).ranges[0])

    return _with_passages("order_range", model, load, of)


def order_changed(model: str, load: Load) -> Measure:
    """Return in which share of the other cyclic orders a reader writes another answer than in the retriever's order."""
    known: dict[str | None, float] = {}  # it is the same for all methods of a question

    def of(reader: ScoringReader, case: Case) -> float:
        example = case.example
        if example.id not in known:
            known[example.id] = sensitivity(reader, example.question, example.passages).changed
        return known[example.id]

    return _with_passages("order_changed", model, load, of)


def distraction(model: str, load: Load) -> Measure:
    """Return the largest distracting effect of a passage that was read and holds no right answer, None without one."""

    def of(reader: ScoringReader, case: Case) -> float | None:
        read = range(len(case.example.passages)) if case.read is None else case.read
        others = [p for i in read if not ((p := case.example.passages[i]).is_gold or p.has_answer)]
        return float(distracting_effects(reader, case.example.question, others).max()) if others else None

    return _with_passages("distraction", model, load, of)


def _unless_over_long(of: Of, reader: ScoringReader, case: Case) -> float | None:
    """Return a measure of an answer, or None if its passages are longer than the reader's context."""
    try:
        return of(reader, case)
    except ContextOverflowError:
        return None


def _with_passages(name: str, model: str, load: Load, of: Of) -> Measure:
    def measure(cases: Sequence[Case]) -> list[float | None]:
        reader = load(model)
        expect(isinstance(reader, ScoringReader), f"measure {name!r}", "a reader that scores token ids", model)
        assert isinstance(reader, ScoringReader)
        return [_unless_over_long(of, reader, case) if case.example.passages else None for case in cases]

    return measure
