"""Selective answering against hand examples, brute force and scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fastreader.errors import InputError
from fastreader.statistics import auroc, expected_calibration_error, risk_coverage


def test_a_curve_by_hand():
    curve = risk_coverage([0.9, 0.8, 0.8, 0.1], [1, 0, 1, 0])
    assert curve.threshold.tolist() == [0.9, 0.8, 0.1]
    assert curve.coverage == pytest.approx([0.25, 0.75, 1.0])
    assert curve.risk == pytest.approx([0, 1 / 3, 1 / 2])
    assert curve.area == pytest.approx((0 + 0.5 / 2 + 1 / 3 + 1 / 2) / 4)  # half an error is expected among two
    assert [curve.at(c) for c in (0.1, 0.25, 0.26, 0.75, 1.0)] == pytest.approx([0, 0, 1 / 3, 1 / 3, 1 / 2])
    assert curve.to_dict()["threshold"] == [0.9, 0.8, 0.1]


def test_area_is_the_mean_over_the_orders_of_ties():
    rng = np.random.default_rng(0)
    confidence, right = rng.integers(0, 4, 25).astype(float), rng.integers(0, 2, 25)
    places = np.arange(1, 26)
    areas = []
    for _ in range(20_000):
        order = np.lexsort((rng.random(25), -confidence))
        areas.append(np.mean(np.cumsum(1 - right[order]) / places))
    assert risk_coverage(confidence, right).area == pytest.approx(np.mean(areas), abs=2e-3)


def test_auroc_against_all_pairs_and_scikit_learn():
    rng = np.random.default_rng(1)
    for _ in range(20):
        confidence, right = rng.integers(0, 6, 30).astype(float), rng.integers(0, 2, 30)
        found = auroc(confidence, right, resamples=10).estimate
        a, b = confidence[right == 1][:, None], confidence[right == 0]
        assert found == pytest.approx(((a > b) + 0.5 * (a == b)).mean())
        assert found == pytest.approx(roc_auc_score(right, confidence))


def test_interval_of_auroc_covers():
    """Normal scores of unit distance have an AUROC of Phi(1 / sqrt 2) = 0.7602."""
    rng = np.random.default_rng(2)
    inside = 0
    for draw in range(100):
        right = np.repeat([0, 1], 40)
        inside += 0.7602 in auroc(rng.normal(right, 1.0), right, resamples=200, seed=draw)
    assert 87 <= inside <= 100


def test_clusters_are_drawn_whole():
    confidence, right = [0.9, 0.1, 0.8, 0.3, 0.2, 0.6], [1, 0, 1, 0, 1, 0]
    single = auroc(np.repeat(confidence, 8), np.repeat(right, 8), resamples=300)
    whole = auroc(np.repeat(confidence, 8), np.repeat(right, 8), clusters=np.repeat(np.arange(6), 8), resamples=300)
    assert single.estimate == whole.estimate and whole.high - whole.low > 1.5 * (single.high - single.low)


def test_calibration_error_by_hand():
    # Bins (0, .5] and (.5, 1]: |.4 + .5 - 1| / 4 + |.9 + .6 - 2| / 4.
    assert expected_calibration_error([0.4, 0.5, 0.9, 0.6], [1, 0, 1, 1], bins=2) == pytest.approx((0.1 + 0.5) / 4)
    assert expected_calibration_error([0.0, 1.0], [0, 1]) == 0
    rng = np.random.default_rng(3)
    p = rng.random(200_000)
    assert expected_calibration_error(p, rng.random(200_000) < p) < 0.01
    assert expected_calibration_error(p, rng.random(200_000) < p / 2) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: risk_coverage([0.1], [1, 0]), "right: expected one outcome for each of 1 answers"),
        (lambda: risk_coverage([0.1], [2]), "right: expected only 0"),
        (lambda: auroc([0.1, 0.2], [1, 1]), "right: expected both 0 and 1"),
        (lambda: expected_calibration_error([1.2], [1]), "confidence: expected probabilities"),
        (lambda: expected_calibration_error([0.2], [1], bins=0), "bins: expected an integer"),
        (lambda: risk_coverage([0.1], [1]).at(0.0), "coverage: expected a finite number above 0"),
    ],
)
def test_rejects(call, message):
    with pytest.raises(InputError, match=message):
        call()
