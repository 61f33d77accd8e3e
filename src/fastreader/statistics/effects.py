"""The size of a difference, and the smallest one that a sample can show.

Functions take pairs `a` and `b` as the tests in `significance` do, and raise the same errors.
"""

from __future__ import annotations

import math

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_number
from fastreader.statistics.checks import binary_pair, cluster_index, differences, numbers
from fastreader.statistics.intervals import Interval, Labels, Values


@checked
def cohens_d(a: Values, b: Values) -> float:
    """Return the mean of a - b over the standard deviation of a - b (Cohen 1988, d_z, for pairs).

    Returns:
        0.0 if all differences are 0; NaN if all are equal otherwise, or if there is only one pair.
    """
    difference = differences(a, b)
    if not difference.any():
        return 0.0
    spread = float(difference.std(ddof=1)) if (difference != difference[0]).any() else 0.0
    return float(difference.mean()) / spread if spread else math.nan


@checked
def risk_difference(a: Values, b: Values) -> float:
    """Return the share of 1 in `a` minus the share of 1 in `b`, which hold only 0 and 1."""
    first, second = binary_pair(a, b)
    return float(first.mean() - second.mean())


@checked
def discordant_odds_ratio(a: Values, b: Values, confidence_level: float = 0.95) -> Interval:
    """Return the odds ratio of matched pairs of 0 and 1: those with only a = 1 over those with only b = 1.

    The interval is that of Clopper and Pearson (1934) for the share of the first among the pairs that differ, as odds.

    Returns:
        The ratio with its interval; NaN if no pair differs, infinite if all pairs that differ have a = 1.
    """
    from scipy import stats  # imported here, as it takes a second

    first, second = binary_pair(a, b)
    check_number("confidence_level", confidence_level, above=0, below=1)
    only_a, only_b = int((first & ~second).sum()), int((second & ~first).sum())
    differing = only_a + only_b
    if differing == 0:
        return Interval(math.nan, 0.0, math.inf, confidence_level)
    bounds = stats.binomtest(only_a, differing).proportion_ci(confidence_level, method="exact")
    return Interval(_odds(only_a / differing), _odds(float(bounds.low)), _odds(float(bounds.high)), confidence_level)


@checked
def minimum_detectable_effect(
    a: Values,
    b: Values | None = None,
    *,
    power: float = 0.8,
    confidence_level: float = 0.95,
    clusters: Labels | None = None,
) -> float:
    """Return the smallest true mean difference that a two-sided test on such a sample finds with the given power.

    (z_{(1 + confidence_level) / 2} + z_power) times the standard error of the mean; with clusters the standard error is
    the cluster-robust one, sqrt(G / (G - 1) * sum over clusters of (sum of deviations)^2) / n. It describes the
    sensitivity of the study, computed from the observed spread; it is not a p value.

    Args:
        a: [n] numbers; the differences themselves if `b` is None.
        b: [n] numbers paired with `a`.
        power: probability of finding the difference, between 0 and 1.
        confidence_level: 1 - alpha of the test.
        clusters: [n] labels, as in `bootstrap`.

    Returns:
        The difference in the unit of a - b; NaN if all differences are equal or belong to one cluster.

    Raises:
        InputError: if values are invalid, the number of labels differs, or `power` or `confidence_level` is not between
            0 and 1.
    """
    from scipy import stats  # imported here, as it takes a second

    check_number("confidence_level", confidence_level, above=0, below=1)
    check_number("power", power, above=0, below=1)
    difference = numbers("a", a) if b is None else differences(a, b)
    index = cluster_index(clusters, len(difference))
    deviations = np.bincount(index, weights=difference - difference.mean())
    groups = len(deviations)
    if groups < 2 or not (difference != difference[0]).any():
        return math.nan
    error = math.sqrt(groups / (groups - 1) * float((deviations**2).sum())) / len(difference)
    return float(stats.norm.ppf((1 + confidence_level) / 2) + stats.norm.ppf(power)) * error


def _odds(share: float) -> float:
    return share / (1 - share) if share < 1 else math.inf
