"""P(best): the probability that a passage has the largest utility, of a Gaussian posterior, or that it is gold."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fastreader.moi.types import FloatArray

DRAWS = 1000  # posterior samples: the probability is known to about 0.01


def best(utility: FloatArray, covariance: FloatArray, temperature: float = 1.0) -> FloatArray:
    """Probability that each passage has the largest utility, of a Gaussian posterior: float64 [N], sums to 1.

    By `DRAWS` fixed samples, so the same posterior always gives the same numbers. Raised to 1 / temperature, which a
    calibration fits to how often gold passages are the best.
    """
    n = len(utility)
    trace = float(np.trace(covariance))
    if trace <= 0:
        return winners(utility)
    root = np.linalg.cholesky(covariance + 1e-10 * trace * np.eye(n))
    wins = np.bincount((_draws(n) @ root.T + utility).argmax(axis=1), minlength=n) / DRAWS
    return tempered(wins, temperature)


def winners(utility: FloatArray) -> FloatArray:
    """1 for the largest utility, shared among equals: float64 [N]."""
    largest = (utility == utility.max()).astype(np.float64)
    share: FloatArray = largest / largest.sum()
    return share


def tempered(p: FloatArray, temperature: float) -> FloatArray:
    """``p^(1/T)``, normalised; a p of 0 counts as half a draw where T is not 1."""
    if temperature == 1.0:
        return p
    log = np.log(np.maximum(p, 0.5 / DRAWS)) / temperature
    weight = np.exp(log - log.max())
    value: FloatArray = weight / weight.sum()
    return value


@lru_cache(maxsize=16)
def _draws(n: int) -> FloatArray:
    half = np.random.default_rng(20241217).standard_normal((DRAWS // 2, n))
    return np.concatenate([half, -half])
