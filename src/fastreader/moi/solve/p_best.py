"""P(best): the probability that a passage has the largest utility under its posterior, or that it is gold."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import chdtri

from fastreader.moi.quantities.observations import FloatArray

DRAWS = 1000  # posterior samples: the probability is accurate to about 0.01


def best(utility: FloatArray, covariance: FloatArray, temperature: float = 1.0, df: float = float("inf")) -> FloatArray:
    """Return the probability that each passage has the largest utility: float64 [N], sums to 1.

    The posterior, Gaussian or a t of `df` degrees of freedom with this scale matrix, is sampled by `DRAWS` fixed
    draws, so the same posterior always gives the same numbers. The probability is raised to 1 / temperature, which a
    calibration fits to how often gold passages are the best.
    Without any variance the largest utility has 1, shared among equals.
    """
    n = len(utility)
    trace = float(np.trace(covariance))
    if trace <= 0:
        largest = (utility == utility.max()).astype(np.float64)
        return np.asarray(largest / largest.sum(), dtype=np.float64)
    root = np.linalg.cholesky(covariance + 1e-10 * trace * np.eye(n))
    drawn = _draws(n) @ root.T
    if np.isfinite(df):
        drawn = drawn * np.sqrt(df / chdtri(df, _tails()))[:, None]
    wins = np.bincount((drawn + utility).argmax(axis=1), minlength=n) / DRAWS
    return tempered(wins, temperature)


def tempered(p: FloatArray, temperature: float) -> FloatArray:
    """Return ``p^(1/T)``, normalised, counting a p of 0 as half a draw unless T is 1."""
    if temperature == 1.0:
        return p
    log = np.log(np.maximum(p, 0.5 / DRAWS)) / temperature
    weight = np.exp(log - log.max())
    return np.asarray(weight / weight.sum(), dtype=np.float64)


@lru_cache(maxsize=1)
def _tails() -> FloatArray:
    """Return uniform numbers, for the chi^2 of each draw: float64 [DRAWS]."""
    return np.random.default_rng(20250729).permutation((np.arange(DRAWS) + 0.5) / DRAWS)


@lru_cache(maxsize=16)
def _draws(n: int) -> FloatArray:
    half = np.random.default_rng(20241217).standard_normal((DRAWS // 2, n))
    return np.concatenate([half, -half])
