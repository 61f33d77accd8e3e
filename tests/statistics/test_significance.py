"""Tests of significance against published examples, SciPy and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from fastreader.errors import InputError
from fastreader.statistics import holm, mcnemar, sign_flip, wilcoxon


def table(both: int, only_a: int, only_b: int, neither: int) -> tuple[list[int], list[int]]:
    return [1] * both + [1] * only_a + [0] * only_b + [0] * neither, [1] * both + [0] * only_a + [1] * only_b + [
        0
    ] * neither


def test_mcnemar_on_agrestis_example():
    """Agresti 1990, approval of the prime minister: 86 and 150 of 1,600 changed their mind, exact p 3.716e-05."""
    assert mcnemar(*table(794, 150, 86, 570)) == pytest.approx(3.716e-05, rel=1e-3)


def test_mcnemar_equals_brute_force():
    a, b = table(3, 7, 2, 4)
    tosses = [sum(t) for t in itertools.product([0, 1], repeat=9)]
    assert mcnemar(a, b) == pytest.approx(np.mean([t <= 2 or t >= 7 for t in tosses]), abs=1e-12)
    assert mcnemar(b, a) == mcnemar(a, b)
    assert mcnemar(*table(5, 0, 0, 5)) == 1.0


def test_wilcoxon_on_scipys_documented_example():
    """Cureton 1967, by SciPy's documentation: heights of crossed and self-fertilised corn, p 0.04126."""
    d = np.array([6, 8, 14, 16, 23, 24, 28, 29, 41, -48, 49, 56, 60, -67, 75], dtype=float)
    assert wilcoxon(d, np.zeros(15)) == pytest.approx(0.041259765625)


def test_wilcoxon_drops_equal_pairs():
    d = np.array([6, 8, 14, 16, 23, 24, 28, 29, 41, -48, 49, 56, 60, -67, 75, 0, 0, 0], dtype=float)
    assert wilcoxon(d, np.zeros(18)) == pytest.approx(0.041259765625)
    assert wilcoxon([1, 0, 1], [1, 0, 1]) == 1.0


@pytest.mark.parametrize("count", [2, 5, 8])
def test_wilcoxon_of_few_pairs_is_scipys_over_all_signs(count):
    generator = np.random.default_rng(count)
    for most in (1, 2, 3, 1000):  # the fewer values, the more ties
        d = generator.choice([-1, 1], count) * generator.integers(1, most + 1, count)
        wanted = stats.wilcoxon(d, method=stats.PermutationMethod(n_resamples=2**count)).pvalue
        assert wilcoxon(d, np.zeros(count)) == pytest.approx(wanted, abs=1e-12)


def test_wilcoxon_of_few_pairs_is_exact_with_ties_and_without():
    assert wilcoxon([2], [1]) == 1.0
    for d in (np.arange(1, 14) * [1, -1, 1, 1, 1, 1, -1, 1, 1, 1, 1, 1, 1], [2] * 12 + [-2]):
        signs = np.array(list(itertools.product([-1, 1], repeat=13)))
        sums = np.abs(signs @ stats.rankdata(np.abs(d)))
        wanted = (sums >= abs(np.sign(d) @ stats.rankdata(np.abs(d)))).mean()
        assert wilcoxon(d, np.zeros(13)) == pytest.approx(wanted, abs=1e-12)


def test_wilcoxon_on_binary_outcomes_is_mcnemars_chi_square():
    """All differences tie, so that the signed ranks are the signs."""
    a, b = table(40, 31, 15, 60)
    assert wilcoxon(a, b) == pytest.approx(stats.chi2.sf((31 - 15) ** 2 / (31 + 15), 1))


def test_holm_equals_rs_p_adjust():
    assert holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    assert holm([0.04, 0.001, 0.5]) == pytest.approx([0.08, 0.003, 0.5])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_keeps_the_family_wise_error():
    """Of 2,000 families of 8 true nulls about 5% hold a false alarm."""
    generator = np.random.default_rng(0)
    alarms = np.mean([min(holm(generator.random(8).tolist())) < 0.05 for _ in range(2000)])
    assert abs(alarms - 0.05) < 0.02


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mcnemar([1, 0.5], [0, 1]), r"a: expected only 0 .* and 1 .*got \[0.5\]"),
        (lambda: mcnemar([], []), "at least one"),
        (lambda: wilcoxon([1, 2], [1]), "b: expected 2 numbers.*got 1"),
        (lambda: holm([0.1, 1.5]), r"p_values: .*got \[1.5\]"),
        (lambda: holm([float("nan")]), r"p_values: .*got \[nan\]"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_wilcoxon_ties_differences_equal_up_to_rounding():
    thirds = [(3, 2), (2, 1), (1, 3), (3, 3), (2, 0), (0, 1), (3, 1), (1, 0), (3, 2), (2, 1)]
    a, b = np.array(thirds, dtype=float).T
    assert len(set(np.abs(a / 3 - b / 3))) > len(set(np.abs(a - b)))
    assert wilcoxon(a / 3, b / 3) == wilcoxon(a, b)
    assert wilcoxon([1 / 3 + 0.1, 0.5], [0.1 + 1 / 3, 0.5]) == 1.0
    assert wilcoxon(a * 1e-9, b * 1e-9) == wilcoxon(a, b)


def test_one_pair_of_large_values_ties_no_others():
    a = np.random.default_rng(0).normal(1e-3, 1e-4, 40)
    alone = wilcoxon(a, np.zeros(40))
    assert alone < 1e-6
    assert wilcoxon([*a, -1e10], [*np.zeros(40), -1e10]) == alone


# Sign flips against all signs, McNemar, SciPy's permutation test, and their error rate.


def by_all_signs(sums):
    total = abs(sum(sums))
    signs = list(itertools.product((1, -1), repeat=len(sums)))
    return np.mean([abs(sum(s * d for s, d in zip(row, sums, strict=True))) >= total - 1e-12 for row in signs])


def test_sign_flip_against_all_signs():
    a = [1, 1, 1, 0, 1, 1, 0, 1]
    b = [0, 0, 1, 1, 0, 0, 0, 1]
    clusters = ["x", "x", "y", "y", "z", "w", "w", "v"]
    assert sign_flip(a, b, clusters=clusters) == pytest.approx(by_all_signs([2, -1, 1, 1]))


def test_sign_flip_without_clusters_is_mcnemars_test():
    generator = np.random.default_rng(0)
    for share in (0.5, 0.6, 0.8):
        a, b = (generator.random(70) < s for s in (share, 0.5))
        assert sign_flip(a, b) == pytest.approx(mcnemar(a, b), rel=1e-9)


def test_sign_flip_on_other_numbers_against_scipy():
    generator = np.random.default_rng(3)
    a, b = generator.normal(0.25, 1, 40), generator.normal(0, 1, 40)
    wanted = stats.permutation_test(
        (a - b,), np.sum, permutation_type="samples", n_resamples=20_000, random_state=generator
    )
    found = sign_flip(a, b, resamples=20_000)
    assert found == pytest.approx(float(wanted.pvalue), abs=0.015)
    assert sign_flip(a, b, resamples=20_000) == found  # seeded


def test_sign_flip_keeps_the_error_rate_on_clusters():
    """Eight questions at a time are right or wrong together, without a difference: 5% should be below 0.05."""
    generator = np.random.default_rng(5)
    clusters = np.repeat(np.arange(30), 8)
    found = np.zeros(2)
    for _ in range(300):
        a, b = (np.repeat(generator.random(30) < 0.5, 8) for _ in range(2))
        found += (sign_flip(a, b, clusters=clusters) < 0.05, mcnemar(a, b) < 0.05)
    assert found[0] / 300 < 0.08 and found[1] / 300 > 0.3


def test_sign_flip_without_difference_and_bad_input():
    assert sign_flip([1, 0], [1, 0]) == 1.0
    with pytest.raises(InputError, match="resamples"):
        sign_flip([1.5], [0.0], resamples=0)
    with pytest.raises(InputError, match="one label for each of 1 values, got 2"):
        sign_flip([1], [0], clusters=[1, 2])
