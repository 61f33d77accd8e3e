"""Maximise the marginal likelihood: starts, the limit without noise, bootstrap."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter

import numpy as np
from scipy.special import chdtri

from fastreader.moi.quantities.observations import FloatArray
from fastreader.moi.solve.likelihood import Pooled, design, fit, negative_log_likelihood

_AS_LIKELY = 2.0  # nats: fits within this of the best count as equal to it
_FLOORS = (1e-4, 1e-7, 1e-10)  # of the scores' variance: successive lower bounds of sigma^2
_CHANCE = 1e-3  # of taking worthless query likelihoods for evidence
_VALUE = itemgetter(1)


def maximise(data: Pooled, starts: int, rng: np.random.Generator) -> tuple[FloatArray, bool, bool]:
    """Return the likeliest parameters.

    Args:
        data: scores and query likelihoods of unit spread.
        starts: number of random starts, besides the regression on the query likelihoods.
        rng: of the starts.

    Returns:
        (parameters, whether another bias is as likely, whether query likelihoods determine it beyond chance)
    """
    k = data.basis.shape[1]
    tried = []
    for number in range(starts + 1):
        theta = _regression(data) if number == 0 and data.query else rng.standard_normal(size=(k,))
        tried.append(fit(_start(theta, 0.5 * data.query), data))
    beyond_chance, others = False, tried
    if data.query:
        without = replace(data, query=False)
        lowest = min(tried, key=_VALUE)[0]
        alone = fit(np.concatenate([lowest[:-2], [0.0, lowest[-1]]]), without)
        if alone[1] < min(tried, key=_VALUE)[1]:  # all starts ended at utilities that the query likelihoods fix
            tried.append(fit(alone[0], data))
        beyond_chance = _beyond_chance(2 * (alone[1] - min(tried, key=_VALUE)[1]), k)
        if not beyond_chance:
            again = rng.spawn(1)[0]
            drawn = [_start(again.standard_normal(size=(k,)), 0.0) for _ in range(starts)]
            others = [alone, *(fit(start, without) for start in drawn)]
    likeliest, value = min(tried, key=_VALUE)
    best = likeliest
    # Scores almost without noise: lower sigma step by step, since its valley is too narrow to follow from far away.
    for floor in _FLOORS[1:]:
        if best[-1] > np.log(_FLOORS[0]) + 1e-6:
            break
        best, value = fit(best, data, floor=floor)
        exact = np.concatenate([_polished(best[:-2], data), [best[-2], np.log(floor)]])
        exact_value, _ = negative_log_likelihood(exact, data, np.ones(len(data.rows)))
        if exact_value < value:
            best, value = exact, exact_value
    one = _are_one(unit(best, data)[0], tried, data) and _are_one(unit(likeliest, data)[0], others, data)
    return best, not one, beyond_chance


def _are_one(bias: FloatArray, tried: list[tuple[FloatArray, float]], data: Pooled) -> bool:
    """Return whether the likeliest fit and those as likely have this bias, up to its sign."""
    lowest = min(value for _, value in tried)
    equals = [unit(parameters, data)[0] for parameters, value in tried if value <= lowest + _AS_LIKELY]
    return all(abs(float(bias @ other)) >= 0.95 for other in equals)


def _beyond_chance(gain: float, k: int) -> bool:
    """Return whether query likelihoods explain the scores beyond chance, by `gain`, twice the gain in log-likelihood.

    Query likelihoods shift the scores' means by ``X z b``, linear in the k weights ``b theta``. If they are worthless,
    the gain is at most chi^2 of k degrees of freedom, the gain of k free weights. If they gain no more, the scores'
    covariance must determine the bias without them; the covariance of cyclic orderings alone does not, since it is the
    same for any phases of the bias's spectrum. Nor do they then decide the sign: with a dozen questions and beta 0,
    the bootstrap's standard error of beta alone passes in 1 of 1,000 runs.
    """
    return bool(gain > chdtri(k, _CHANCE))


def _start(theta: FloatArray, b: float) -> FloatArray:
    return np.concatenate([0.8 * theta / max(float(np.linalg.norm(theta)), 1e-12), [b, np.log(0.4)]])


def _polished(theta: FloatArray, data: Pooled) -> FloatArray:
    """Refine theta to rounding for scores without noise, by Gauss-Newton on the part that no utilities explain.

    The residual of a question is P y with P = I - X X^+, and its derivative -P dX v (Kaufman's variable projection).
    """
    left, y, basis = np.inf, data.whitened, data.basis
    for _ in range(20):
        x = design(basis @ theta, data)
        inverse = np.linalg.pinv(x, rcond=1e-8)
        v = inverse @ y[:, :, None]
        residual = y - (x @ v)[:, :, 0]
        if float((residual**2).sum()) >= left:
            break
        left, best = float((residual**2).sum()), theta
        moved = np.concatenate([design(basis[:, j], data) @ v for j in range(len(theta))], axis=2)
        moved = moved - x @ (inverse @ moved)
        step = np.linalg.lstsq(moved.reshape(-1, len(theta)), residual.ravel(), rcond=1e-10)[0]
        theta = theta + step
    return best


def _regression(data: Pooled) -> FloatArray:
    """Return a first guess of theta, float64 [k]: least squares of the scores on the query likelihood at each place."""
    k = data.basis.shape[1]
    blocks = np.stack([design(data.basis[:, j], data) @ data.z[:, :, None] for j in range(k)], axis=-1)
    guess = np.asarray(np.linalg.lstsq(blocks.reshape(-1, k), data.whitened.ravel(), rcond=None)[0], dtype=np.float64)
    return guess if np.linalg.norm(guess) > 0 else np.ones(k)


def unit(parameters: FloatArray, data: Pooled) -> tuple[FloatArray, float]:
    """Return the bias of unit norm, and tau."""
    theta = parameters[:-2]
    tau = float(np.linalg.norm(theta))
    return data.basis @ (theta / tau if tau > 0 else np.eye(len(theta))[0]), tau


def towards_convention(parameters: FloatArray, data: Pooled) -> FloatArray:
    """Return parameters with beta > 0, or without query likelihoods with a bias of positive sum (for prefixes)."""
    towards = float(parameters[-2]) if data.query else float((data.basis @ parameters[:-2]).sum())
    return parameters if towards >= 0 else _negated(parameters)


def _negated(parameters: FloatArray) -> FloatArray:
    return np.append(-parameters[:-1], parameters[-1])


def bootstrap(best: FloatArray, data: Pooled, resamples: int, rng: np.random.Generator) -> list[FloatArray]:
    """Return the parameters of refits to resampled questions, each with the sign nearer to `best`."""
    count, samples = len(data.rows), []
    for _ in range(resamples):
        weights = np.bincount(rng.integers(count, size=count), minlength=count).astype(np.float64)
        drawn = np.flatnonzero(weights)
        found, _ = fit(best, data.take(drawn), weights[drawn], tolerance=3e-7, iterations=60)
        samples.append(found if found[:-2] @ best[:-2] >= 0 else _negated(found))
    return samples
