"""A test on pairs that hang together in clusters."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastreader.core.checks import random_generator
from fastreader.errors import InputError
from fastreader.statistics.checks import FloatArray, cluster_index, pair
from fastreader.statistics.intervals import Labels, Values

_EXACT = 100_000  # largest sum of the clusters' differences whose distribution is computed
_CELLS = 4_000_000  # drawn at a time


def sign_flip(a: Values, b: Values, *, clusters: Labels | None = None, resamples: int = 10_000, seed: int = 0) -> float:
    """Two-sided p of Fisher's randomisation test on a - b (1935), with whole clusters keeping their sign together.

    Without an effect each cluster's sum of differences is as likely to be its negative. p is the share of all signs
    under which the total is at least as far from 0 as it is. On right and wrong answers, every pair a cluster of its
    own, this is the exact p of McNemar's test; where questions share a gold passage, McNemar's and Wilcoxon's tests
    take them for independent and this one does not.

    Args:
        a, b: [n] finite numbers; a[i] and b[i] belong to the same question.
        clusters: [n] labels of any hashable kind; None: every pair for itself.
        resamples: how often signs are drawn where differences are no whole numbers; p is then
            (1 + hits) / (1 + resamples). For whole numbers it is exact.
        seed: of these draws.

    Raises:
        InputError: no pairs, lengths that differ, a value that is not finite, labels of another length, or a number
            out of range.
    """
    first, second = pair("sign_flip", a, b)
    if resamples < 1:
        raise InputError(f"sign_flip: resamples must be at least 1, got {resamples}")
    index = cluster_index("sign_flip", clusters, len(first))
    sums = np.bincount(index, weights=first - second)
    total = abs(float(sums.sum()))
    sizes = np.abs(sums[sums != 0])
    whole = np.rint(sizes)
    if (whole == sizes).all() and sizes.sum() <= _EXACT:
        return _exact(whole.astype(np.int64), int(total))
    return _drawn(sizes, total, resamples, seed)


def _exact(sizes: npt.NDArray[np.int64], total: int) -> float:
    """Share of signs whose sum is at least `total` from 0, by adding one cluster after the other."""
    most = int(sizes.sum())
    shares = np.zeros(2 * most + 1)  # of each sum from -most
    shares[most] = 1.0
    for size in sizes:
        shares = (np.roll(shares, size) + np.roll(shares, -size)) / 2  # nothing wraps: sums stay within +-most
    return min(1.0, float(shares[np.abs(np.arange(-most, most + 1)) >= total].sum()))


def _drawn(sizes: FloatArray, total: float, resamples: int, seed: int) -> float:
    generator = random_generator(seed)
    hits, step = 0, max(1, _CELLS // len(sizes))
    for start in range(0, resamples, step):
        signs = 2 * generator.integers(0, 2, (min(step, resamples - start), len(sizes))) - 1
        # Sums that are equal but for rounding count as equal.
        hits += int((np.abs(signs @ sizes) >= total - 1e-9 * sizes.sum()).sum())
    return (1 + hits) / (1 + resamples)
