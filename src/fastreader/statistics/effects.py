"""How large a difference is, and how small a one the sample could have shown."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from fastreader.errors import InputError
from fastreader.statistics.checks import binary_pair, check_confidence_level, cluster_index, differences, numbers
from fastreader.statistics.intervals import Interval, Labels, Values


def cohens_d(a: Values, b: Values) -> float:
    """Mean of a - b over the standard deviation of a - b (Cohen 1988, d_z, for pairs).

    Returns:
        0.0 where all differences are 0; not a number where they are equal otherwise, or where there is one pair.

    Raises:
        InputError: no pairs, lengths that differ, or a value that is not finite.
    """
    difference = differences("cohens_d", a, b)
    if not difference.any():
        return 0.0
    spread = float(difference.std(ddof=1)) if (difference != difference[0]).any() else 0.0
    return float(difference.mean()) / spread if spread else math.nan


def risk_difference(a: Values, b: Values) -> float:
    """Share of 1 in a, less that in b.

    Raises:
        InputError: values other than 0 and 1, none, or lengths that differ.
    """
    first, second = binary_pair("risk_difference", a, b)
    return float(first.mean() - second.mean())


def discordant_odds_ratio(a: Values, b: Values, confidence_level: float = 0.95) -> Interval:
    """Pairs where only a is 1, over those where only b is: the odds ratio of matched pairs, with an exact interval.

    The interval is Clopper and Pearson's (1934) for the share among the pairs that differ, as odds.

    Returns:
        Not a number where no pair differs, infinite where only a's are.

    Raises:
        InputError: values other than 0 and 1, none, lengths that differ, or a level out of range.
    """
    first, second = binary_pair("discordant_odds_ratio", a, b)
    check_confidence_level("discordant_odds_ratio", confidence_level)
    only_a, only_b = int((first & ~second).sum()), int((second & ~first).sum())
    if only_a + only_b == 0:
        return Interval(math.nan, 0.0, math.inf, confidence_level)
    bounds = stats.binomtest(only_a, only_a + only_b).proportion_ci(confidence_level, method="exact")
    return Interval(
        _odds(only_a / (only_a + only_b)), _odds(float(bounds.low)), _odds(float(bounds.high)), confidence_level
    )


def minimum_detectable_effect(
    a: Values,
    b: Values | None = None,
    *,
    power: float = 0.8,
    confidence_level: float = 0.95,
    clusters: Labels | None = None,
) -> float:
    """Smallest true mean difference that a two-sided test on such a sample finds with the given power.

    (z_{(1 + level) / 2} + z_power) times the standard error of the mean; with clusters the standard error is the
    cluster-robust one, sqrt(G / (G - 1) * sum over clusters of (sum of deviations)^2) / n. It says what the study
    could have seen, from the spread it saw; it is no p value.

    Args:
        a: [n] numbers; the differences themselves where `b` is None.
        b: [n] numbers paired with `a`.
        power: chance of finding it, between 0 and 1.
        confidence_level: 1 - level is the test's alpha.
        clusters: [n] labels, as for `bootstrap`.

    Returns:
        In the unit of a - b; not a number where all differences are equal or all are of one cluster.

    Raises:
        InputError: no values, lengths that differ, a value that is not finite, or a number out of range.
    """
    name = "minimum_detectable_effect"
    check_confidence_level(name, confidence_level)
    if not 0 < power < 1:
        raise InputError(f"{name}: power must be between 0 and 1, got {power}")
    difference = numbers(name, "a", a) if b is None else differences(name, a, b)
    index = cluster_index(name, clusters, len(difference))
    deviations = np.bincount(index, weights=difference - difference.mean())
    groups = len(deviations)
    if groups < 2 or not (difference != difference[0]).any():
        return math.nan
    error = math.sqrt(groups / (groups - 1) * float((deviations**2).sum())) / len(difference)
    return float(stats.norm.ppf((1 + confidence_level) / 2) + stats.norm.ppf(power)) * error


def _odds(share: float) -> float:
    return share / (1 - share) if share < 1 else math.inf
