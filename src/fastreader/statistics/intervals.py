"""Confidence intervals: bootstrap, paired bootstrap, Wilson."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from fastreader.core.checks import random_generator
from fastreader.errors import InputError
from fastreader.statistics.checks import check_confidence_level, cluster_index, numbers, pair

Values = Sequence[float] | npt.NDArray[np.floating] | npt.NDArray[np.integer] | npt.NDArray[np.bool_]
Labels = Sequence[object] | npt.NDArray[np.generic]

_CELLS = 4_000_000  # drawn at a time, so that memory does not grow with resamples times values


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval.

    Attributes:
        estimate: the value in the sample.
        low, high: bounds of the interval, in the estimate's unit.
        confidence_level: its confidence, between 0 and 1.
    """

    estimate: float
    low: float
    high: float
    confidence_level: float = 0.95

    def __str__(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def to_dict(self) -> dict[str, float | None]:
        """The attributes as JSON values; what is infinite or not a number becomes null."""
        values = {
            "estimate": self.estimate,
            "low": self.low,
            "high": self.high,
            "confidence_level": self.confidence_level,
        }
        return {name: value if math.isfinite(value) else None for name, value in values.items()}


def bootstrap(
    values: Values,
    *,
    clusters: Labels | None = None,
    confidence_level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Mean with a percentile bootstrap interval (Efron 1979).

    With clusters whole clusters are drawn, as many as there are, and the mean is over the values drawn: the ratio of
    the clusters' sums to their sizes. It is the interval to use where values hang together, as those of questions
    that share a gold passage.

    Args:
        values: [n] finite numbers.
        clusters: [n] labels of any hashable kind; None: every value for itself.
        confidence_level: confidence.
        resamples: how often to draw; the cost is resamples times the number of clusters.
        seed: of the draws.

    Raises:
        InputError: no values, a value that is not finite, labels of another length, or a number out of range.
    """
    numeric = numbers("bootstrap", "values", values)
    check_confidence_level("bootstrap", confidence_level)
    if resamples < 1:
        raise InputError(f"bootstrap: resamples must be at least 1, got {resamples}")
    index = cluster_index("bootstrap", clusters, len(numeric))
    sums = np.bincount(index, weights=numeric)
    sizes = np.bincount(index)
    means = np.empty(resamples)
    generator = random_generator(seed)
    step = max(1, _CELLS // len(sums))
    for first in range(0, resamples, step):
        count = min(step, resamples - first)
        drawn = generator.integers(0, len(sums), (count, len(sums)))  # [count, clusters]
        means[first : first + count] = sums[drawn].sum(1) / sizes[drawn].sum(1)
    tail = (1 - confidence_level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(numeric.mean()), float(low), float(high), confidence_level)


def paired_bootstrap(
    a: Values,
    b: Values,
    *,
    clusters: Labels | None = None,
    confidence_level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Mean of a - b over pairs, with a percentile bootstrap interval that draws pairs (or clusters of pairs).

    Args:
        a, b: [n] finite numbers; a[i] and b[i] belong to the same question.
        clusters, confidence_level, resamples, seed: as for `bootstrap`.

    Raises:
        InputError: as `bootstrap`, or lengths that differ.
    """
    first, second = pair("paired_bootstrap", a, b)
    return bootstrap(
        first - second, clusters=clusters, confidence_level=confidence_level, resamples=resamples, seed=seed
    )


def wilson(successes: int, n: int, confidence_level: float = 0.95) -> Interval:
    """A share with its score interval (Wilson 1927), good at small n and near 0 or 1.

    Args:
        successes: how many of n.
        n: at least 1.
        confidence_level: confidence.

    Raises:
        InputError: n below 1, or successes that are no integer in 0..n.
    """
    check_confidence_level("wilson", confidence_level)
    if n != int(n) or n < 1:
        raise InputError(f"wilson: n must be an integer of at least 1, got {n}")
    if successes != int(successes) or not 0 <= successes <= n:
        raise InputError(f"wilson: successes must be an integer in 0..{n}, got {successes}")
    bounds = stats.binomtest(int(successes), int(n)).proportion_ci(confidence_level, method="wilson")
    return Interval(float(successes) / float(n), float(bounds.low), float(bounds.high), confidence_level)
