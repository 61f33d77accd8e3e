"""Summary of a noise study: accuracy under each layout, and each layout against its baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fastreader.core.checked import checked, checked_methods
from fastreader.core.checks import expect
from fastreader.data.record import Record
from fastreader.noise.ask import NoiseAnswers
from fastreader.noise.layouts import LayoutSpec
from fastreader.statistics import Comparison, Interval, bootstrap, compare

# Random passages before the gold one, at our largest number. In the paper 12 to 16 of them improve accuracy, and 8 do
# not differ significantly from only the gold passage (.5609 against .5642).
PRIMARY = "random:8:near"


@checked_methods
@dataclass(frozen=True)
class MeasureMean(Record):
    """Mean of a measure over the answers of one layout.

    Attributes:
        n: number of answers that have the measure.
        mean: with its bootstrap interval, clustered by gold passage, in the unit of the measure.
    """

    n: int
    mean: Interval


@checked_methods
@dataclass(frozen=True)
class LayoutCounts(Record):
    """Counts and measures of one layout, besides right and wrong answers.

    Attributes:
        asked: number of questions that were run.
        over_long: number of questions whose prompt leaves no room for a reply; not run, and not in the accuracy.
        missing: number of questions without the layout's passages; not run, and not in the accuracy.
        no_answer: share of replies that no document holds the answer; None if no question was run.
        prompt_tokens: mean number of tokens of the prompts; None if no question was run.
        accuracy_over_long_wrong: accuracy with over-long prompts counted as wrong answers; None without such prompts.
        measures: mean of each measure of `NoiseAnswer.measures`, over the answers that have it.
    """

    asked: int
    over_long: int
    missing: int
    no_answer: float | None
    prompt_tokens: float | None
    accuracy_over_long_wrong: float | None
    measures: dict[str, MeasureMean]


@checked_methods
@dataclass(frozen=True)
class NoiseSummary:
    """A noise study.

    Attributes:
        questions: number of questions.
        clusters: number of distinct gold passages.
        comparison: accuracy of each layout that was run, and its contrast with its baseline.
        counts: counts by layout, including layouts that were never run.
    """

    questions: int
    clusters: int
    comparison: Comparison
    counts: dict[str, LayoutCounts]

    def to_dict(self) -> dict[str, Any]:
        """Return all values as JSON."""
        return {
            "questions": self.questions,
            "clusters": self.clusters,
            **self.comparison.to_dict(),
            "counts": {name: counts.to_dict() for name, counts in self.counts.items()},
        }


@checked
def baseline_of(layout: str) -> str | None:
    """Return the baseline of a layout, as in the paper: "gold", or only its retrieved passages.

    A baseline itself has None, and so has the closed book, which is a separate condition.
    """
    spec = LayoutSpec.parse(layout)
    if not spec.noise:
        return None
    return f"retrieved:{spec.retrieved}" if spec.retrieved else "gold"


@checked
def summarise(
    results: Iterable[NoiseAnswers],
    *,
    primary: str | None = None,
    confidence_level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> NoiseSummary:
    """Compute accuracies with intervals, and compare every layout with its baseline by `statistics.compare`.

    Questions that share a gold passage form a cluster. Contrasts whose baseline was not run are omitted.

    Args:
        results: one per question.
        primary: layout whose contrast was stated beforehand (`PRIMARY` in our own study); None has no primary contrast.
        confidence_level, resamples, seed: options of the intervals.

    Raises:
        InputError: if there are no results or no answers, two results have the same id, or the primary layout has no
            contrast.
    """
    rows = list(results)
    names = list(dict.fromkeys(name for row in rows for name in (*row.answers, *row.over_long, *row.missing)))
    repeated = [id for id, count in Counter(row.id for row in rows).items() if count > 1]
    expect(not repeated, "summarise: results", "each id once", repeated)
    outcomes = {
        name: {row.id: row.answers[name].right for row in rows if name in row.answers} for name in _in_order(names)
    }
    asked = {name: values for name, values in outcomes.items() if values}
    expect(bool(asked), "summarise: results", "at least one answer", [row.id for row in rows])
    baselines = {name: base for name in asked if (base := baseline_of(name)) in asked and base is not None}
    clusters = {row.id: row.cluster for row in rows if row.cluster is not None}
    options: dict[str, Any] = {"confidence_level": confidence_level, "resamples": resamples, "seed": seed}
    comparison = compare(
        asked,
        baselines,
        clusters=clusters,
        primary=primary,
        **options,
    )
    counts = {name: _counts(rows, name, options) for name in outcomes}
    return NoiseSummary(len(rows), len(set(clusters.values())), comparison, counts)


def _counts(rows: list[NoiseAnswers], name: str, options: dict[str, Any]) -> LayoutCounts:
    answers = [row.answers[name] for row in rows if name in row.answers]
    over_long = sum(name in row.over_long for row in rows)
    right = sum(answer.right for answer in answers)
    measures = dict.fromkeys(measure for answer in answers for measure in answer.measures)
    return LayoutCounts(
        asked=len(answers),
        over_long=over_long,
        missing=sum(name in row.missing for row in rows),
        no_answer=sum(a.no_answer for a in answers) / len(answers) if answers else None,
        prompt_tokens=sum(a.prompt_tokens for a in answers) / len(answers) if answers else None,
        accuracy_over_long_wrong=right / (len(answers) + over_long) if over_long else None,
        measures={measure: _mean(rows, name, measure, options) for measure in measures},
    )


def _mean(rows: list[NoiseAnswers], name: str, measure: str, options: dict[str, Any]) -> MeasureMean:
    values = {
        row.id: (value, row.cluster if row.cluster is not None else row.id)
        for row in rows
        if name in row.answers and (value := row.answers[name].measures.get(measure)) is not None
    }
    numbers, clusters = zip(*values.values(), strict=True)
    return MeasureMean(len(numbers), bootstrap(numbers, clusters=clusters, **options))


def _in_order(names: list[str]) -> list[str]:
    """Sort names: closed book, gold, the oracle layouts by kind, position and number, the retrieved ones."""

    def key(name: str) -> tuple[object, ...]:
        spec = LayoutSpec.parse(name)
        kind = spec.noise if spec.gold else ""
        return bool(spec.retrieved), spec.gold, kind, spec.retrieved, spec.position, spec.count

    return sorted(names, key=key)
