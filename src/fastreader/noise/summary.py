"""A noise study in numbers: accuracy under each layout, and each layout against its baseline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fastreader.errors import InputError
from fastreader.noise.ask import NoiseAnswers
from fastreader.noise.layouts import LayoutSpec
from fastreader.statistics import Comparison, compare

# Random passages before the gold one, at our largest number: in the paper those next to the question gain with 12 to 16
# of them, and 8 are not told from the gold passage alone (.5609 against .5642, not significant).
PRIMARY = "random:8:near"


@dataclass(frozen=True)
class LayoutCounts:
    """What happened under one layout besides right and wrong.

    Attributes:
        asked: questions asked.
        over_long: questions whose prompt left no room for a reply; not asked, and not in the accuracy.
        missing: questions without the passages it needs; not asked, and not in the accuracy.
        no_answer: share of replies that said no document holds the answer; None where nothing was asked.
        prompt_tokens: mean over the prompts asked; None where nothing was asked.
        accuracy_over_long_wrong: accuracy with over-long prompts counted as wrong answers; None where there are none.
    """

    asked: int
    over_long: int
    missing: int
    no_answer: float | None
    prompt_tokens: float | None
    accuracy_over_long_wrong: float | None


@dataclass(frozen=True)
class NoiseSummary:
    """A noise study.

    Attributes:
        questions: in it.
        clusters: distinct gold passages.
        comparison: accuracy of each layout that was asked, and its contrast with its baseline.
        counts: by layout, those that were never asked included.
    """

    questions: int
    clusters: int
    comparison: Comparison
    counts: dict[str, LayoutCounts]

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "questions": self.questions,
            "clusters": self.clusters,
            **self.comparison.to_dict(),
            "counts": {name: vars(counts) for name, counts in self.counts.items()},
        }


def baseline_of(layout: str) -> str | None:
    """What a layout is held against, as in the paper: "gold", or its retrieved passages alone; None for a baseline.

    The closed book has none: it is a condition of its own.
    """
    spec = LayoutSpec.parse(layout)
    if not spec.noise:
        return None
    return f"retrieved:{spec.retrieved}" if spec.retrieved else "gold"


def summarise(
    results: Iterable[NoiseAnswers],
    *,
    primary: str | None = None,
    confidence_level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> NoiseSummary:
    """Accuracy with intervals, and every layout against its baseline; see `statistics.compare`.

    Questions that share a gold passage are one cluster. Contrasts whose baseline was not asked are left out.

    Args:
        results: one a question.
        primary: the layout whose contrast was stated beforehand (`PRIMARY` in our own study); None for none.
        confidence_level, resamples, seed: of the intervals.

    Raises:
        InputError: no results, two of one id, nothing asked at all, or a primary layout without contrast.
    """
    rows = list(results)
    names = list(dict.fromkeys(name for row in rows for name in (*row.answers, *row.over_long, *row.missing)))
    if len({row.id for row in rows}) < len(rows):
        raise InputError("summarise: two results have the same id")
    outcomes = {
        name: {row.id: row.answers[name].right for row in rows if name in row.answers} for name in _in_order(names)
    }
    asked = {name: values for name, values in outcomes.items() if values}
    if not asked:
        raise InputError(f"summarise: expected answers, got {len(rows)} results without any")
    baselines = {name: base for name in asked if (base := baseline_of(name)) in asked and base is not None}
    clusters = {row.id: row.cluster for row in rows if row.cluster is not None}
    comparison = compare(
        asked,
        baselines,
        clusters=clusters,
        primary=primary,
        confidence_level=confidence_level,
        resamples=resamples,
        seed=seed,
    )
    return NoiseSummary(
        len(rows), len(set(clusters.values())), comparison, {name: _counts(rows, name) for name in outcomes}
    )


def _counts(rows: list[NoiseAnswers], name: str) -> LayoutCounts:
    answers = [row.answers[name] for row in rows if name in row.answers]
    over_long = sum(name in row.over_long for row in rows)
    right = sum(answer.right for answer in answers)
    return LayoutCounts(
        asked=len(answers),
        over_long=over_long,
        missing=sum(name in row.missing for row in rows),
        no_answer=sum(a.no_answer for a in answers) / len(answers) if answers else None,
        prompt_tokens=sum(a.prompt_tokens for a in answers) / len(answers) if answers else None,
        accuracy_over_long_wrong=right / (len(answers) + over_long) if over_long else None,
    )


def _in_order(names: list[str]) -> list[str]:
    """Closed book, gold, the oracle layouts by kind, position and number, the retrieved ones."""

    def key(name: str) -> tuple[object, ...]:
        spec = LayoutSpec.parse(name)
        return (
            bool(spec.retrieved),
            spec.gold,
            spec.noise if spec.gold else "",
            spec.retrieved,
            spec.position,
            spec.count,
        )

    return sorted(names, key=key)
