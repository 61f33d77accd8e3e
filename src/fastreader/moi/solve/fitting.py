"""Maximising the marginal likelihood: starts, the limit without noise, bootstrap."""

from __future__ import annotations

import numpy as np
from scipy.special import chdtri

from fastreader.moi.solve.likelihood import Pooled, design, fit, negative_log_likelihood
from fastreader.moi.types import FloatArray

_AS_LIKELY = 2.0  # nats: fits within this of the best count as its equals
_FLOORS = (1e-4, 1e-7, 1e-10)  # of the scores' variance: how low sigma^2 is sought, in turn
_CHANCE = 1e-3  # that query likelihoods of no worth pass for evidence
_LARGEST = 30.0  # tau, and beta over tau, in units of the scores' and query likelihoods' spread


def maximise(
    data: Pooled, basis: FloatArray, with_qg: bool, starts: int, rng: np.random.Generator
) -> tuple[FloatArray, bool, bool]:
    """The likeliest parameters; whether another bias is as likely; whether query likelihoods tell it beyond chance.

    Args:
        data: scores and query likelihoods of unit spread.
        basis: of the biases, float64 [L, k].
        with_qg: whether there are query likelihoods.
        starts: random starts, besides the regression on the query likelihoods.
        rng: of the starts.
    """
    k = basis.shape[1]
    y, weights = data.centred, np.ones(len(data.rows))
    tried = []
    for number in range(starts + 1):
        theta = _regression(data, basis) if number == 0 and with_qg else rng.standard_normal(k)
        theta = 0.8 * theta / max(float(np.linalg.norm(theta)), 1e-12)
        start = np.concatenate([theta, [0.5 * with_qg, np.log(0.4)]])
        tried.append(fit(start, data, y, basis, weights, bounds(k, with_qg)))
    beyond_chance, others = False, tried
    if with_qg:
        alone = _without_query(min(tried, key=_value)[0], data, basis)
        if alone[1] < min(tried, key=_value)[1]:  # all starts were drawn to utilities that the query likelihoods fix
            tried.append(fit(alone[0], data, y, basis, weights, bounds(k, with_qg)))
        beyond_chance = _beyond_chance(2 * (alone[1] - min(tried, key=_value)[1]), k)
        if not beyond_chance:
            others = [alone, *_starts_without(data, basis, starts, rng.spawn(1)[0])]
    likeliest, lowest = min(tried, key=_value)
    best = likeliest
    # Scores almost without noise: lower sigma step by step, since from afar its valley is too narrow to follow.
    value = lowest
    for floor in _FLOORS[1:]:
        if best[k + 1] > np.log(_FLOORS[0]) + 1e-6:
            break
        best, value = fit(best, data, y, basis, weights, bounds(k, with_qg, floor))
        exact = np.concatenate([_polished(best[:k], data, y, basis), [best[k], np.log(floor)]])
        exact_value, _slope = negative_log_likelihood(exact, data, y, basis, weights)
        if exact_value < value:
            best, value = exact, exact_value
    one = _are_one(unit(best, basis)[0], tried, basis) and _are_one(unit(likeliest, basis)[0], others, basis)
    return best, not one, beyond_chance


def _are_one(bias: FloatArray, tried: list[tuple[FloatArray, float]], basis: FloatArray) -> bool:
    """Whether the likeliest fits, and those as likely, have this bias, whatever its sign."""
    lowest = min(value for _, value in tried)
    equals = [unit(parameters, basis)[0] for parameters, value in tried if value <= lowest + _AS_LIKELY]
    return all(abs(float(bias @ other)) >= 0.95 for other in equals)


def _beyond_chance(gain: float, k: int) -> bool:
    """Whether query likelihoods bring the scores more than a chance agreement does; `gain` is twice the nats brought.

    They shift the scores' means by ``X z b``, linear in the k weights ``b theta``: where they are worth nothing the
    gain is at most chi^2 of k degrees of freedom (a bias of their own, which they do not have, would bring that much).
    Where they bring no more, the scores' covariance must tell the bias without them; that of cyclic orderings alone
    does not, being the same for any phases of its spectrum. Nor do they then tell the sign: the bootstrap's standard
    error of beta alone, from a dozen questions, passes 1 in 1,000 where beta is 0.
    """
    return bool(gain > chdtri(k, _CHANCE))


def _value(found: tuple[FloatArray, float]) -> float:
    return found[1]


def _without_query(start: FloatArray, data: Pooled, basis: FloatArray) -> tuple[FloatArray, float]:
    """The fit without query likelihoods, b = 0, reached from there."""
    k = basis.shape[1]
    start = np.concatenate([start[:k], [0.0, start[k + 1]]])
    return fit(start, data, data.centred, basis, np.ones(len(data.rows)), bounds(k, False))


def _starts_without(
    data: Pooled, basis: FloatArray, starts: int, rng: np.random.Generator
) -> list[tuple[FloatArray, float]]:
    tried = []
    for _ in range(starts):
        theta: FloatArray = rng.standard_normal(size=(basis.shape[1],))
        start = np.concatenate([0.8 * theta / np.linalg.norm(theta), [0.0, np.log(0.4)]])
        tried.append(_without_query(start, data, basis))
    return tried


def _polished(theta: FloatArray, data: Pooled, y: FloatArray, basis: FloatArray) -> FloatArray:
    """Gauss-Newton on the scores that no utilities explain, for scores without noise: theta to rounding.

    The residual of a question is P y with P = I - X X^+, and its derivative -P dX v (Kaufman's variable projection).
    """
    left = np.inf
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


def bounds(k: int, with_qg: bool, floor: float = _FLOORS[0]) -> list[tuple[float, float]]:
    """Of the parameters, for `likelihood.fit`: theta [k], b (0 without query likelihoods), log s."""
    slope = (-_LARGEST, _LARGEST) if with_qg else (0.0, 0.0)
    return [(-_LARGEST, _LARGEST)] * k + [slope, (float(np.log(floor)), float(np.log(1e2)))]


def _regression(data: Pooled, basis: FloatArray) -> FloatArray:
    """Least squares of the scores on the query likelihood at each place: a first guess of theta, float64 [k]."""
    blocks = np.stack([design(basis[:, j], data) @ data.z[:, :, None] for j in range(basis.shape[1])], axis=-1)
    found = np.linalg.lstsq(blocks.reshape(-1, basis.shape[1]), data.centred.ravel(), rcond=None)[0]
    guess = np.asarray(found, dtype=np.float64)
    return guess if np.linalg.norm(guess) > 0 else np.ones(basis.shape[1])


def unit(parameters: FloatArray, basis: FloatArray) -> tuple[FloatArray, float]:
    """Bias of unit norm, and tau."""
    theta = parameters[: basis.shape[1]]
    tau = float(np.linalg.norm(theta))
    return basis @ (theta / tau if tau > 0 else np.eye(len(theta))[0]), tau


def towards_convention(parameters: FloatArray, basis: FloatArray, with_qg: bool) -> FloatArray:
    """beta > 0; without query likelihoods prefixes have a positive sum (a passage read counts for itself)."""
    k = basis.shape[1]
    towards = float(parameters[k]) if with_qg else float((basis @ parameters[:k]).sum())
    return parameters if towards >= 0 else _negated(parameters, k)


def _negated(parameters: FloatArray, k: int) -> FloatArray:
    return np.concatenate([-parameters[: k + 1], parameters[k + 1 :]])


def bootstrap(
    best: FloatArray, data: Pooled, basis: FloatArray, with_qg: bool, resamples: int, rng: np.random.Generator
) -> list[FloatArray]:
    """Parameters of refits to resampled questions, each of the sign nearer to `best`."""
    k, count = basis.shape[1], len(data.rows)
    y = data.centred
    samples = []
    for _ in range(resamples):
        weights = np.bincount(rng.integers(count, size=count), minlength=count).astype(np.float64)
        drawn = np.flatnonzero(weights)
        found, _value = fit(best, data.take(drawn), y[drawn], basis, weights[drawn], bounds(k, with_qg), 3e-7, 60)
        samples.append(found if found[:k] @ best[:k] >= 0 else _negated(found, k))
    return samples
