"""A paired test whose unit is a cluster: the sign-flip test of a mean difference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 20_000
EXACT = 14  # clusters up to which all sign patterns are gone through


def sign_flip(differences: Sequence[float], clusters: Sequence[str], seed: int = 0) -> float:
    """Two-sided p of a mean difference of 0, by flipping the signs of whole clusters.

    Under the null the differences of a cluster (here: questions of one gold passage) are as likely to come out with
    all their signs turned; questions of one cluster may depend on each other in any way. Exact up to `EXACT`
    clusters that differ from 0, else by `RESAMPLES` random patterns, the one observed counted in.
    """
    names = {name: i for i, name in enumerate(dict.fromkeys(clusters))}
    sums = np.zeros(len(names))
    np.add.at(sums, [names[name] for name in clusters], np.asarray(differences, dtype=np.float64))
    sums = sums[sums != 0]
    if not len(sums):
        return 1.0
    least = abs(sums.sum()) * (1 - 1e-12)
    if len(sums) <= EXACT:
        patterns = (np.arange(2 ** len(sums))[:, None] >> np.arange(len(sums))) & 1
        return float(np.mean(np.abs((2.0 * patterns - 1) @ sums) >= least))
    rng, reached = np.random.default_rng(seed), 0
    for _ in range(RESAMPLES // 1000):
        patterns = rng.integers(0, 2, (1000, len(sums)), dtype=np.int8)
        reached += int((np.abs((2.0 * patterns - 1) @ sums) >= least).sum())
    return (reached + 1) / (RESAMPLES + 1)
