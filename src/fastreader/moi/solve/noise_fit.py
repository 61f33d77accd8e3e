"""Fit the noise of many questions: the spread of their scales, and what common beginnings share."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastreader.moi.quantities.observations import FloatArray
from fastreader.moi.quantities.score_noise import Noise, correlations, covariance, log_determinant
from fastreader.moi.solve.likelihood import Pooled, fit, negative_log_likelihood

_USUAL = np.array([np.log(4.0), 0.0, 0.0])  # of log nu and the logits of share and decay: what real readers showed
_SPREAD = np.array([1.0, 1.0, 1.0])  # of a weak prior around it, so that few questions cannot run to an end
_EXACT = 1e-3  # sigma^2 in the scores' variance below which there is no noise to describe
_ROUNDS = 2


def fit_with_noise(best: FloatArray, data: Pooled) -> tuple[FloatArray, Pooled]:
    """Return the parameters and the data with the likeliest noise, found alternately, unless scores are noise-free.

    Args:
        best: the parameters under plain noise, as in `likelihood.negative_log_likelihood`.
        data: scores and query likelihoods of unit spread, with plain noise.
    """
    if float(np.exp(best[-1])) < _EXACT:
        return best, data
    found = _USUAL
    for _ in range(_ROUNDS):
        found, log_s = _noise(best, found, data)
        data = data.with_noise(_as_noise(found, data.length))
        best, _ = fit(np.append(best[:-1], log_s), data, tolerance=1e-9)
    return best, data


def _noise(best: FloatArray, start: FloatArray, data: Pooled) -> tuple[FloatArray, float]:
    """Return the likeliest (log nu, logit share, logit decay) and log s for a bias and utilities that are kept."""
    from scipy.optimize import minimize

    ones = np.ones(len(data.rows))

    def loss(unknown: FloatArray) -> float:
        noise = _as_noise(unknown[:3], data.length)
        against = data.with_noise(noise)
        value, _ = negative_log_likelihood(np.append(best[:-1], unknown[3]), against, ones)
        extent = 0.5 * float(log_determinant(covariance(data.permutations, noise.shared), data.rows).sum())
        return value + extent + 0.5 * float((((unknown[:3] - _USUAL) / _SPREAD) ** 2).sum())

    found: Any = minimize(
        loss,
        np.append(start, best[-1]),
        method="Nelder-Mead",
        options={"maxfev": 200, "xatol": 0.02, "fatol": 0.02, "initial_simplex": _simplex(np.append(start, best[-1]))},
    )
    return np.asarray(found.x[:3], dtype=np.float64), float(found.x[3])


def _simplex(start: FloatArray) -> FloatArray:
    return np.concatenate([start[None], start + 0.5 * np.eye(len(start))])


def _as_noise(unknown: FloatArray, length: int) -> Noise:
    df, share, decay = float(np.exp(np.clip(unknown[0], 0.1, 6.0))), *_expit(unknown[1:3])
    return Noise(df, correlations(0.95 * share, decay, length))


def _expit(logits: FloatArray) -> list[float]:
    values: list[float] = (1 / (1 + np.exp(-np.clip(logits, -8.0, 8.0)))).tolist()
    return values
