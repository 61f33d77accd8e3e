"""Measures of the passages that were read or cited."""

from __future__ import annotations

from collections.abc import Callable

from fastreader.moi.baselines.ordering import show
from fastreader.statistics.measures.citations import cited, support
from fastreader.study.measures.case import Case


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
    """Return `citation_precision` or `citation_recall`, by containment unless `supports` judges support."""
    passages = shown(case)
    return None if passages is None else count(case.answer, passages, *supports)
