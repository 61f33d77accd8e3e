"""Confidence intervals: bootstrap, paired bootstrap, Wilson."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked
from fastreader.core.checks import MOST_RESAMPLES, check_int, check_number, random_generator
from fastreader.data.record import Record
from fastreader.statistics.checks import cluster_index, numbers, pair

Values = Sequence[float] | npt.NDArray[np.floating] | npt.NDArray[np.integer] | npt.NDArray[np.bool_]
Labels = Sequence[object] | npt.NDArray[np.generic]

CELLS = 4_000_000
"""Number of values drawn at a time, so that memory does not grow with resamples times values."""


@dataclass(frozen=True)
class Interval(Record):
    """An estimate with its confidence interval.

    Attributes:
        estimate: the value in the sample.
        low, high: bounds of the interval, in the unit of the estimate.
        confidence_level: between 0 and 1.
    """

    estimate: float
    low: float
    high: float
    confidence_level: float = 0.95

    def __str__(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@checked
def bootstrap(
    values: Values,
    *,
    clusters: Labels | None = None,
    confidence_level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Return the mean with its percentile bootstrap interval (Efron 1979).

    With clusters each resample draws whole clusters, as many as there are, and its mean is over the drawn values: the
    sum of the clusters' sums over the sum of their sizes. Use clusters if values depend on each other, such as for
    questions that share a gold passage.

    Args:
        values: [n] finite numbers.
        clusters: [n] labels of any hashable kind; None makes every value its own cluster.
        confidence_level: between 0 and 1.
        resamples: number of resamples; the cost is resamples times the number of clusters.
        seed: of the draws.

    Raises:
        InputError: if there are no values, a value is not finite, the number of labels differs, `resamples` < 1, or
            `confidence_level` is not between 0 and 1.
    """
    numeric = numbers("values", values)
    check_number("confidence_level", confidence_level, above=0, below=1)
    check_int("resamples", resamples, 1, MOST_RESAMPLES)
    index = cluster_index(clusters, len(numeric))
    sums = np.bincount(index, weights=numeric)
    sizes = np.bincount(index)
    means = np.empty(resamples)
    generator = random_generator(seed)
    step = max(1, CELLS // len(sums))
    for first in range(0, resamples, step):
        count = min(step, resamples - first)
        drawn = generator.integers(0, len(sums), (count, len(sums)))  # [count, clusters]
        means[first : first + count] = sums[drawn].sum(1) / sizes[drawn].sum(1)
    tail = (1 - confidence_level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(numeric.mean()), float(low), float(high), confidence_level)


@checked
def paired_bootstrap(a: Values, b: Values, **options: Any) -> Interval:
    """Return the mean of a - b over pairs, with a bootstrap interval that draws pairs or clusters of pairs.

    Args:
        a, b: [n] finite numbers; a[i] and b[i] belong to the same question.
        options: `clusters`, `confidence_level`, `resamples` and `seed` of `bootstrap`.

    Raises:
        InputError: if `bootstrap` raises it, or the lengths differ.
    """
    first, second = pair(a, b)
    return bootstrap(first - second, **options)


@checked
def wilson(successes: int, n: int, confidence_level: float = 0.95) -> Interval:
    """Return a share with its score interval (Wilson 1927), good at small n and near 0 or 1.

    Args:
        successes: number of successes among n.
        n: at least 1.
        confidence_level: between 0 and 1.

    Raises:
        InputError: if `n` is not an integer of at least 1, `successes` is not an integer in 0..n, or `confidence_level`
            is not between 0 and 1.
    """
    from scipy import stats  # imported here, as it takes a second

    check_number("confidence_level", confidence_level, above=0, below=1)
    check_int("n", n)
    check_int("successes", successes, 0, n)
    bounds = stats.binomtest(int(successes), int(n)).proportion_ci(confidence_level, method="wilson")
    return Interval(float(successes) / float(n), float(bounds.low), float(bounds.high), confidence_level)
