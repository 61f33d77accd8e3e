"""Intervals against published examples, brute force, and their coverage in simulations."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from fastreader.errors import InputError
from fastreader.statistics import Interval, bootstrap, paired_bootstrap, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_on_newcombes_examples(successes, n, low, high):
    """Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I, method 3."""
    interval = wilson(successes, n)
    assert interval.estimate == successes / n
    assert interval.low == pytest.approx(low, abs=5e-5) and interval.high == pytest.approx(high, abs=5e-5)


def test_bootstrap_is_the_quantiles_of_all_resamples():
    """Compare with the quantiles of all 27 resamples of three values."""
    values = [0.0, 1.0, 5.0]
    means = [np.mean(draw) for draw in itertools.product(values, repeat=3)]
    interval = bootstrap(values, confidence_level=0.8, resamples=20_000)
    assert interval.estimate == 2.0
    assert interval.low == pytest.approx(np.quantile(means, 0.1), abs=1e-9)
    assert interval.high == pytest.approx(np.quantile(means, 0.9), abs=1e-9)


def test_clusters_are_drawn_whole():
    """Two clusters of different sizes have only the resamples AA, AB, BA and BB."""
    values, clusters = [1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"]
    interval = bootstrap(values, clusters=clusters, confidence_level=0.4, resamples=4000)
    assert interval.estimate == 0.75
    assert (interval.low, interval.high) == (0.75, 0.75)  # AB and BA together hold the middle half
    wide = bootstrap(values, clusters=clusters, confidence_level=0.9, resamples=4000)
    assert (wide.low, wide.high) == (0.0, 1.0)


def test_one_cluster_per_value_equals_no_clusters():
    values = np.random.default_rng(1).normal(size=50)
    assert bootstrap(values, clusters=range(50), seed=3) == bootstrap(values, seed=3)


def test_seed_and_chunks(monkeypatch):
    values = np.random.default_rng(0).normal(size=40)
    assert bootstrap(values, seed=1) == bootstrap(values, seed=1) != bootstrap(values, seed=2)
    whole = bootstrap(values, resamples=101)
    monkeypatch.setattr("fastreader.statistics.intervals.CELLS", 400)
    assert bootstrap(values, resamples=101) == whole


@pytest.mark.parametrize("confidence_level", [0.9, 0.95])
def test_bootstrap_covers_the_mean(confidence_level):
    """Of 400 samples about `confidence_level` hold the true mean. The bounds are four standard errors of that share."""
    generator = np.random.default_rng(7)
    hits = sum(
        0.3
        in bootstrap(
            (generator.random(120) < 0.3).astype(float), confidence_level=confidence_level, resamples=400, seed=i
        )
        for i in range(400)
    )
    assert (
        abs(hits / 400 - confidence_level) < 4 * np.sqrt(confidence_level * (1 - confidence_level) / 400) + 0.01
    )  # 0.01: 120 values, not infinity


def test_only_clustered_intervals_cover_dependent_values():
    """30 clusters of 10 values that share a random effect: ignoring them misses the mean far too often."""
    generator = np.random.default_rng(11)
    labels = np.repeat(np.arange(30), 10)
    with_clusters = without = 0
    for i in range(300):
        values = np.repeat(generator.normal(size=30), 10) + 0.3 * generator.normal(size=300)
        with_clusters += 0.0 in bootstrap(values, clusters=labels, resamples=300, seed=i)
        without += 0.0 in bootstrap(values, resamples=300, seed=i)
    assert with_clusters / 300 > 0.88
    assert without / 300 < 0.6


def test_paired_bootstrap_draws_pairs():
    generator = np.random.default_rng(2)
    question = generator.normal(size=200) * 10
    a, b = question + 0.5, question + 0.1 * generator.normal(size=200)
    interval = paired_bootstrap(a, b)
    assert interval == bootstrap(a - b)
    assert interval.high - interval.low < 0.1  # the questions' own spread of 10 is gone
    assert 0.5 in interval


def test_interval_as_json():
    row = Interval(float("inf"), 0.25, float("inf")).to_dict()
    assert json.loads(json.dumps(row, allow_nan=False)) == {
        "estimate": None,
        "low": 0.25,
        "high": None,
        "confidence_level": 0.95,
    }
    assert str(Interval(0.5, 0.25, 0.75)) == "0.500 [0.250, 0.750]"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap([]), "values: expected a list of at least one number"),
        (lambda: bootstrap([1.0, float("nan")]), r"values\[1\]: expected a finite number, got nan"),
        (lambda: bootstrap(["a"]), r"values\[0\]: expected a number"),
        (lambda: bootstrap([1.0, 2.0], clusters=["a"]), "one label for each of 2 values, got 1"),
        (lambda: bootstrap([1.0], confidence_level=95), "level: expected a finite number above 0 and below 1, got 95"),
        (lambda: bootstrap([1.0], resamples=0), "resamples"),
        (lambda: paired_bootstrap([1.0], [1.0, 2.0]), "b: expected 1 numbers.*got 2"),
        (lambda: wilson(0, 0), "n: expected"),
        (lambda: wilson(3, 2), "from 0 to 2, got 3"),
        (lambda: wilson(0.5, 2), "integer"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()
