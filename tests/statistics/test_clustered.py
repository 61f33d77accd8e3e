"""The sign-flip test against all signs, McNemar, SciPy's permutation test, and by its error rate."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from fastreader.errors import InputError
from fastreader.statistics import mcnemar, sign_flip


def by_all_signs(sums):
    total = abs(sum(sums))
    signs = list(itertools.product((1, -1), repeat=len(sums)))
    return np.mean([abs(sum(s * d for s, d in zip(row, sums, strict=True))) >= total - 1e-12 for row in signs])


def test_by_all_signs():
    a = [1, 1, 1, 0, 1, 1, 0, 1]
    b = [0, 0, 1, 1, 0, 0, 0, 1]
    clusters = ["x", "x", "y", "y", "z", "w", "w", "v"]
    assert sign_flip(a, b, clusters=clusters) == pytest.approx(by_all_signs([2, -1, 1, 1]))


def test_pairs_for_themselves_are_mcnemars_test():
    generator = np.random.default_rng(0)
    for share in (0.5, 0.6, 0.8):
        a, b = (generator.random(70) < s for s in (share, 0.5))
        assert sign_flip(a, b) == pytest.approx(mcnemar(a, b), rel=1e-9)


def test_other_numbers_against_scipy():
    generator = np.random.default_rng(3)
    a, b = generator.normal(0.25, 1, 40), generator.normal(0, 1, 40)
    wanted = stats.permutation_test(
        (a - b,), np.sum, permutation_type="samples", n_resamples=20_000, random_state=generator
    )
    found = sign_flip(a, b, resamples=20_000)
    assert found == pytest.approx(float(wanted.pvalue), abs=0.015)
    assert sign_flip(a, b, resamples=20_000) == found  # seeded


def test_clusters_keep_the_error_rate_that_mcnemar_does_not():
    """Questions in eights that go right or wrong together: nothing differs, and 5% is to be found at 0.05."""
    generator = np.random.default_rng(5)
    clusters = np.repeat(np.arange(30), 8)
    found = np.zeros(2)
    for _ in range(300):
        a, b = (np.repeat(generator.random(30) < 0.5, 8) for _ in range(2))
        found += (sign_flip(a, b, clusters=clusters) < 0.05, mcnemar(a, b) < 0.05)
    assert found[0] / 300 < 0.08 and found[1] / 300 > 0.3


def test_no_difference_and_bad_input():
    assert sign_flip([1, 0], [1, 0]) == 1.0
    with pytest.raises(InputError, match="resamples"):
        sign_flip([1.5], [0.0], resamples=0)
    with pytest.raises(InputError, match="one label a value"):
        sign_flip([1], [0], clusters=[1, 2])
