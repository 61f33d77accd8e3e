"""Selective answering: what a confidence is worth when the least confident answers are withheld.

Functions take a confidence and an outcome of each answer, [n]; outcomes are 1 (right) or 0 (wrong).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked, checked_methods
from fastreader.core.checks import MOST_RESAMPLES, check_int, check_number, expect, random_generator
from fastreader.data.record import Record
from fastreader.statistics.checks import BoolArray, FloatArray, cluster_index, numbers
from fastreader.statistics.intervals import Interval, Labels, Values


@checked_methods
@dataclass(frozen=True, eq=False)
class RiskCoverage(Record):
    """The share of wrong answers among those given, at every coverage (Geifman & El-Yaniv 2017).

    Answers of equal confidence are given together, so the curve has one point for each distinct confidence.

    Attributes:
        threshold: float64 [m], falling: answers of at least this confidence are given.
        coverage: float64 [m], share of the questions answered; the last is 1.
        risk: float64 [m], share of wrong answers among the answered.
        area: mean risk over the coverages 1/n, 2/n, ..., 1 (AURC), ties in their expected order; lower is better.
    """

    threshold: FloatArray
    coverage: FloatArray
    risk: FloatArray
    area: float

    def at(self, coverage: float) -> float:
        """Return the risk at the smallest coverage of the curve that is at least `coverage`.

        Raises:
            InputError: if `coverage` is not in (0, 1].
        """
        check_number("coverage", coverage, above=0, maximum=1)
        return float(self.risk[int(np.searchsorted(self.coverage, coverage - 1e-12))])


@checked
def risk_coverage(confidence: Values, right: Values) -> RiskCoverage:
    """Return risk against coverage when answers are given from the most confident down.

    Args:
        confidence: [n] finite numbers, larger is surer, in any unit.
        right: [n] of 0 and 1.

    Raises:
        InputError: if the lengths differ, there is no answer, or an outcome is neither 0 nor 1.
    """
    values, outcomes = _answers(confidence, right)
    thresholds, group = np.unique(-values, return_inverse=True)
    sizes = np.bincount(group)
    wrong = np.bincount(group, weights=~outcomes)
    answered, errors = np.cumsum(sizes), np.cumsum(wrong)
    before = np.repeat(answered - sizes, sizes)
    place = np.arange(1, len(values) + 1)
    # Within a tie the errors come at their mean rate.
    expected = np.repeat(errors - wrong, sizes) + np.repeat(wrong / sizes, sizes) * (place - before)
    area = float(np.mean(expected / place))
    return RiskCoverage(-thresholds, answered / len(values), errors / answered, area)


@checked
def auroc(
    confidence: Values,
    right: Values,
    *,
    clusters: Labels | None = None,
    confidence_level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Return the probability that a right answer has a larger confidence than a wrong one, ties counting half.

    It is the area under the ROC curve, Mann and Whitney's U over the number of pairs (Hanley & McNeil 1982). The
    interval is the percentile bootstrap's, which draws questions or clusters of them; resamples without a right or
    without a wrong answer are left out.

    Args:
        confidence, right: same as `risk_coverage`; `right` may be any label of 0 and 1.
        clusters, confidence_level, resamples, seed: same as `bootstrap`.

    Raises:
        InputError: as `risk_coverage`; or if all outcomes are equal.
    """
    values, outcomes = _answers(confidence, right)
    expect(0 < int(outcomes.sum()) < len(outcomes), "right", "both 0 and 1 among the outcomes", outcomes.tolist())
    check_number("confidence_level", confidence_level, above=0, below=1)
    check_int("resamples", resamples, 1, MOST_RESAMPLES)
    index = cluster_index(clusters, len(values))
    count = int(index.max()) + 1
    area = _area_of(values, outcomes)
    generator = random_generator(seed)
    drawn = (np.bincount(generator.integers(0, count, count), minlength=count)[index] for _ in range(resamples))
    found = [value for value in map(area, drawn) if value is not None]
    tail = (1 - confidence_level) / 2
    low, high = np.quantile(found, [tail, 1 - tail]) if found else (0.0, 1.0)
    estimate = area(np.ones(len(values), dtype=np.int64))
    assert estimate is not None  # both outcomes occur
    return Interval(estimate, float(low), float(high), confidence_level)


@checked
def expected_calibration_error(confidence: Values, right: Values, *, bins: int = 10) -> float:
    """Return the mean distance between confidence and accuracy over bins of equal width (Naeini et al. 2015).

    Bin b of B holds the confidences in (b/B, (b+1)/B], the first also 0; a bin counts by its share of the answers.

    Args:
        confidence: [n] probabilities that the answers are right, in [0, 1].
        right: [n] of 0 and 1.
        bins: number of bins B.

    Raises:
        InputError: as `risk_coverage`; if a confidence is not in [0, 1], or `bins` < 1.
    """
    values, outcomes = _answers(confidence, right)
    outside = values[(values < 0) | (values > 1)].tolist()
    expect(not outside, "confidence", "probabilities in [0, 1]", outside)
    check_int("bins", bins, 1, 1_000_000)
    place = np.clip(np.ceil(values * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(place, weights=values - outcomes, minlength=bins)
    return float(np.abs(gaps).sum() / len(values))


def _area_of(values: FloatArray, outcomes: BoolArray) -> Callable[[npt.NDArray[np.int64]], float | None]:
    """Return what computes the area from how often each answer is drawn: None without both outcomes."""
    order = np.argsort(values, kind="stable")
    right, ascending = outcomes[order], values[order]
    starts = np.flatnonzero(np.append(True, ascending[1:] != ascending[:-1]))  # of equal confidences

    def area(counts: npt.NDArray[np.int64]) -> float | None:
        drawn = counts[order]
        positive, negative = (np.add.reduceat(drawn * those, starts) for those in (right, ~right))
        pairs = int(positive.sum()) * int(negative.sum())
        below = np.cumsum(negative) - negative
        return int(positive @ (2 * below + negative)) / 2 / pairs if pairs else None

    return area


def _answers(confidence: Values, right: Values) -> tuple[FloatArray, BoolArray]:
    values, outcomes = numbers("confidence", confidence), numbers("right", right)
    expect(len(outcomes) == len(values), "right", f"one outcome for each of {len(values)} answers", len(outcomes))
    odd = outcomes[~np.isin(outcomes, (0.0, 1.0))].tolist()
    expect(not odd, "right", "only 0 (wrong) and 1 (right)", odd)
    return values, outcomes.astype(bool)
