"""Effect sizes by hand, and the minimum detectable effect by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fastreader.errors import InputError
from fastreader.statistics import cohens_d, discordant_odds_ratio, minimum_detectable_effect, risk_difference


def test_cohens_d_by_hand():
    """Differences 1, 2, 3: mean 2, standard deviation 1."""
    assert cohens_d([2, 4, 6], [1, 2, 3]) == pytest.approx(2.0)
    assert cohens_d([1, 2, 3], [2, 4, 6]) == pytest.approx(-2.0)
    assert cohens_d([1, 0], [1, 0]) == 0.0
    assert math.isnan(cohens_d([2, 3], [1, 2]))


def test_risk_difference_by_hand():
    assert risk_difference([1, 1, 1, 0], [1, 0, 0, 0]) == 0.5


def test_odds_ratio_of_the_pairs_that_differ():
    """Bounds of the share are beta quantiles (Clopper and Pearson), odds are share / (1 - share)."""
    a, b = [1] * 12 + [0] * 5 + [1] * 20, [0] * 12 + [1] * 5 + [1] * 20
    result = discordant_odds_ratio(a, b)
    low, high = stats.beta.ppf(0.025, 12, 6), stats.beta.ppf(0.975, 13, 5)
    assert result.estimate == pytest.approx(12 / 5)
    assert (result.low, result.high) == pytest.approx((low / (1 - low), high / (1 - high)))


def test_odds_ratio_at_the_edges():
    only_a = discordant_odds_ratio([1, 1], [0, 0])
    assert only_a.estimate == only_a.high == math.inf and only_a.low > 0
    only_b = discordant_odds_ratio([0, 0], [1, 1])
    assert only_b.estimate == only_b.low == 0.0
    same = discordant_odds_ratio([1, 0], [1, 0])
    assert math.isnan(same.estimate) and (same.low, same.high) == (0.0, math.inf)


def test_minimum_detectable_effect_by_hand():
    """Differences of +1 and -1, fifty each: (1.95996 + 0.84162) * sqrt(100 / 99) / 10."""
    differences = np.tile([1.0, -1.0], 50)
    assert minimum_detectable_effect(differences) == pytest.approx(2.801585 * math.sqrt(100 / 99) / 10, rel=1e-6)
    assert minimum_detectable_effect(differences + 7, np.full(100, 7.0)) == minimum_detectable_effect(differences)


def test_minimum_detectable_effect_has_its_power():
    """A true difference of that size is found in about 80% of samples."""
    generator = np.random.default_rng(3)
    effect = minimum_detectable_effect(generator.normal(size=100_000)) * math.sqrt(100_000 / 200)
    found = np.mean([stats.ttest_1samp(generator.normal(effect, 1, 200), 0).pvalue < 0.05 for _ in range(1500)])
    assert abs(found - 0.8) < 0.04


def test_clusters_raise_the_minimum_detectable_effect():
    """Ten copies of each value add no information: the cluster-robust error is that of the single values."""
    values = np.random.default_rng(5).normal(size=60)
    copies, labels = np.repeat(values, 10), np.repeat(np.arange(60), 10)
    assert minimum_detectable_effect(copies, clusters=labels) == pytest.approx(minimum_detectable_effect(values))
    assert minimum_detectable_effect(copies) < 0.4 * minimum_detectable_effect(values)


def test_no_spread_gives_nan():
    assert math.isnan(minimum_detectable_effect([1, 1, 1]))
    assert math.isnan(minimum_detectable_effect([1, 2, 3], clusters=["x"] * 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cohens_d([1], [1, 2]), "b: expected 1 numbers.*got 2"),
        (lambda: risk_difference([2], [1]), "a: expected only 0 .* and 1"),
        (lambda: discordant_odds_ratio([1], [0], confidence_level=1), "confidence_level"),
        (
            lambda: minimum_detectable_effect([1, 2], power=80),
            "power: expected a finite number above 0 and below 1, got 80",
        ),
        (lambda: minimum_detectable_effect([1, 2], clusters=[1]), "one label for each of 2 values, got 1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_differences_equal_up_to_rounding_have_no_spread():
    a, b = [0.9, 0.8, 0.7], [0.7, 0.6, 0.5]
    assert len(set(np.subtract(a, b))) > 1
    assert math.isnan(cohens_d(a, b)) and math.isnan(minimum_detectable_effect(a, b))
    assert cohens_d([0.1 + 0.2], [0.3]) == 0.0
