"""Measures of what a reader's passages do: the order alone, and passages that distract.

A noise layout's passages are read in the layout's order, and any other method's are all passages of the question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastreader.core.checks import expect
from fastreader.core.protocol import ScoringReader
from fastreader.data import Passage
from fastreader.errors import ContextOverflowError
from fastreader.noise.distraction import distracting_effects
from fastreader.scoring.sensitivity import sensitivity
from fastreader.study.measures.case import Case, Load, Measure
from fastreader.study.methods.noise import layout_of

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
        return float(sensitivity(reader, case.example.question, passages_of(case), [case.answer]).ranges[0])

    return _with_passages("order_range", model, load, of)


def order_changed(model: str, load: Load) -> Measure:
    """Return in which share of the other cyclic orders a reader writes another answer than in the first order."""
    known: dict[tuple[str | None, tuple[tuple[str, str], ...]], float] = {}  # the same for all methods but layouts

    def of(reader: ScoringReader, case: Case) -> float:
        passages = passages_of(case)
        key = case.example.id, tuple((passage.title, passage.text) for passage in passages)
        if key not in known:
            known[key] = sensitivity(reader, case.example.question, passages).changed
        return known[key]

    return _with_passages("order_changed", model, load, of)


def distraction(model: str, load: Load) -> Measure:
    """Return the largest distracting effect of a passage that was read and holds no right answer, None without one."""

    def of(reader: ScoringReader, case: Case) -> float | None:
        others = _without_answer(case)
        return float(distracting_effects(reader, case.example.question, others).max()) if others else None

    return _with_passages("distraction", model, load, of)


def passages_of(case: Case) -> Sequence[Passage]:
    """Return the passages of the noise layout that was read, or all of the question."""
    return layout_of(case.trace, case.example).passages if "layout" in case.trace else case.example.passages


def _without_answer(case: Case) -> list[Passage]:
    """Return the passages read that hold no right answer, as far as is known."""
    if "layout" in case.trace:
        return layout_of(case.trace, case.example).without_answer
    read = range(len(case.example.passages)) if case.read is None else case.read
    return [p for i in read if not ((p := case.example.passages[i]).is_gold or p.has_answer)]


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
        return [_unless_over_long(of, reader, case) if passages_of(case) else None for case in cases]

    return measure
