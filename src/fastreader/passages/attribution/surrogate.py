"""ContextCite's surrogate: a sparse linear model of an answer's log-odds over random subsets of the passages."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
_SWEEPS, _MOVED = 10_000, 1e-12
_FOLDS = 5


def log_odds(logprobs: npt.ArrayLike) -> FloatArray:
    """Return ``log(p / (1 - p))`` of log-probabilities in nats, which are below 0."""
    values = np.asarray(logprobs, dtype=np.float64)
    # 1 - p rounds to 0 for an answer that is certain in float64
    return values - np.log(np.maximum(-np.expm1(values), np.finfo(np.float64).tiny))


def sparse_weights(masks: npt.NDArray[np.bool_], values: FloatArray, penalty: float) -> tuple[FloatArray, float]:
    """Fit a linear model of values over subsets with an L1 penalty on standardised inputs.

    Minimises ``|y - b - X w|^2 / (2 M) + penalty |w|_1`` by coordinate descent, with the columns of X scaled to mean 0
    and variance 1, and returns weights for the unscaled ones. This is the estimator of ContextCite (Cohen-Wang et al.,
    2024, section 4), whose penalty is 0.01. Their code divides log-odds by the answer's tokens first, which makes it
    0.01 for each token.

    Args:
        masks: bool [M, N], which passages a subset holds.
        values: float64 [M].
        penalty: of weights, at least 0.

    Returns:
        (weights float64 [N], intercept); the weight of a passage that is in all subsets or in none is 0.
    """
    whole = masks.astype(np.float64)
    center, spread = whole.mean(axis=0), whole.std(axis=0)
    varies = spread > 0
    scaled = np.where(varies, (whole - center) / np.where(varies, spread, 1.0), 0.0)
    weights, left, mean = np.zeros(whole.shape[1]), values - values.mean(), float(values.mean())
    for _ in range(_SWEEPS):
        moved = 0.0
        for i in np.flatnonzero(varies):
            before = weights[i]
            pull = before + scaled[:, i] @ left / len(values)
            weights[i] = np.sign(pull) * max(abs(pull) - penalty, 0.0)
            left = left + scaled[:, i] * (before - weights[i])
            moved = max(moved, abs(weights[i] - before))
        if moved <= _MOVED * max(1.0, float(np.abs(values).max())):
            break
    unscaled = np.where(varies, weights / np.where(varies, spread, 1.0), 0.0)
    return unscaled, mean - float(center @ unscaled)


def left_out_fit(
    masks: npt.NDArray[np.bool_], values: FloatArray, penalty: float, rng: np.random.Generator
) -> float | None:
    """Return R^2 of the surrogate on subsets left out of its fit, in five folds, or None if there are fewer than 10.

    At 1 the answer's log-odds are a sum over passages; at 0 or below the weights say nothing about other subsets.
    """
    count = len(values)
    if count < 2 * _FOLDS or np.ptp(values) == 0:
        return None
    folds = rng.permutation(count) % _FOLDS
    missed = np.zeros(count)
    for fold in range(_FOLDS):
        out = folds == fold
        weights, intercept = sparse_weights(masks[~out], values[~out], penalty)
        missed[out] = values[out] - intercept - masks[out] @ weights
    return float(1 - (missed**2).sum() / ((values - values.mean()) ** 2).sum())
