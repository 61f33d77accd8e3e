"""Tests on pairs, and Holm's correction for several tests.

The tests take `a` and `b`, [n] finite numbers (`mcnemar`: 0 and 1), in which a[i] and b[i] belong to the same question.
They raise InputError if a value is anything else, the lengths differ, or there are no pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked
from fastreader.core.checks import MOST_RESAMPLES, check_int, expect, random_generator
from fastreader.statistics.checks import FloatArray, binary_pair, cluster_index, differences, pair
from fastreader.statistics.intervals import CELLS, Labels, Values

_FEW = 13  # pairs for which SciPy is exact despite ties; it permutes all signs, a thousand times as slow
_EXACT = 100_000  # largest sum of the clusters' differences whose distribution is computed


@checked
def mcnemar(a: Values, b: Values) -> float:
    """Return the two-sided exact p of McNemar's test (1947): the pairs that differ against a fair coin.

    p is 1.0 if no pair differs.
    """
    from scipy import stats  # imported here, as it takes a second

    first, second = binary_pair(a, b)
    only_a, only_b = int((first & ~second).sum()), int((second & ~first).sum())
    if only_a + only_b == 0:
        return 1.0
    return float(stats.binomtest(only_a, only_a + only_b, 0.5).pvalue)


@checked
def wilcoxon(a: Values, b: Values) -> float:
    """Return the two-sided p of Wilcoxon's signed-rank test (1945) on a - b, without the pairs that are equal.

    p is exact for up to 13 pairs that differ, and for up to 50 without ties; otherwise it is SciPy's normal
    approximation corrected for ties. On right and wrong answers all differences tie. p is then that of McNemar's test,
    exact for up to 13 pairs, and without continuity correction otherwise; prefer `mcnemar`, which is always exact. p is
    1.0 if no pair differs.
    """
    from scipy import stats  # imported here, as it takes a second

    difference = differences(a, b)
    difference = difference[difference != 0]
    if len(difference) > _FEW:
        return float(stats.wilcoxon(difference).pvalue)
    doubled = np.rint(2 * stats.rankdata(np.abs(difference))).astype(np.int64)  # ties share half ranks
    return _exact(doubled, abs(int((np.sign(difference) * doubled).sum())))


@checked
def sign_flip(a: Values, b: Values, *, clusters: Labels | None = None, resamples: int = 10_000, seed: int = 0) -> float:
    """Return the two-sided p of Fisher's randomisation test on a - b (1935), flipping the signs of whole clusters.

    Without an effect each cluster's sum of differences is as likely to be its negative. p is the share of all sign
    assignments whose total is at least as far from 0 as the observed total. On right and wrong answers, with every pair
    as its own cluster, this is the exact p of McNemar's test. If questions share a gold passage, McNemar's and
    Wilcoxon's tests take them for independent; this test does not.

    Args:
        a, b: [n] paired values.
        clusters: [n] labels of any hashable kind; None makes every pair its own cluster.
        resamples: number of sign assignments drawn if the sums are not whole numbers; p is then
            (1 + hits) / (1 + resamples). For whole numbers p is exact.
        seed: of these draws.

    Raises:
        InputError: if the pairs are invalid, the number of labels differs, or `resamples` < 1.
    """
    first, second = pair(a, b)
    check_int("resamples", resamples, 1, MOST_RESAMPLES)
    index = cluster_index(clusters, len(first))
    sums = np.bincount(index, weights=first - second)
    total = abs(float(sums.sum()))
    sizes = np.abs(sums[sums != 0])
    whole = np.rint(sizes)
    if (whole == sizes).all() and sizes.sum() <= _EXACT:
        return _exact(whole.astype(np.int64), int(total))
    return _drawn(sizes, total, resamples, seed)


@checked
def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values corrected for their number by Holm's step-down method (1979), in the given order.

    The i-th smallest of m, counted from 0, is multiplied by m - i, then raised to at least the one before it and capped
    at 1.

    Raises:
        InputError: if a value is outside 0..1.
    """
    odd = [p for p in p_values if not 0 <= p <= 1]
    expect(not odd, "p_values", "numbers from 0 to 1", odd)
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return [float(value) for value in corrected]


def _exact(sizes: npt.NDArray[np.int64], total: int) -> float:
    """Return the share of sign assignments whose sum is at least `total` from 0, adding one cluster at a time."""
    most = int(sizes.sum())
    shares = np.zeros(2 * most + 1)  # of each sum from -most
    shares[most] = 1.0
    for size in sizes:
        shares = (np.roll(shares, size) + np.roll(shares, -size)) / 2  # nothing wraps: sums stay within +-most
    return min(1.0, float(shares[np.abs(np.arange(-most, most + 1)) >= total].sum()))


def _drawn(sizes: FloatArray, total: float, resamples: int, seed: int) -> float:
    generator = random_generator(seed)
    hits, step = 0, max(1, CELLS // len(sizes))
    for start in range(0, resamples, step):
        signs = 2 * generator.integers(0, 2, (min(step, resamples - start), len(sizes))) - 1
        # Sums that are equal up to rounding count as equal.
        hits += int((np.abs(signs @ sizes) >= total - 1e-9 * sizes.sum()).sum())
    return (1 + hits) / (1 + resamples)
