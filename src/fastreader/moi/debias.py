"""debias: utilities of one question's passages from its scores, under a known position bias or with the joint solve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from fastreader.errors import InputError
from fastreader.moi import cyclic
from fastreader.moi.likelihood import contrasts, places_of
from fastreader.moi.observe import Scored, observe
from fastreader.moi.types import FloatArray, IntArray, Observations, PositionBias, Utilities

METHODS = ("calibrated", "joint")
SOLVERS = ("auto", "dense", "fft")
DRAWS = 1000  # posterior samples behind p_best: it is known to about 0.01
_SEEN = 1e-10  # of the largest eigenvalue: below it a direction is not seen at all, but for rounding
_CLEAR = 16.0  # a direction's gain over what an error in the bias alone would give it: 4 standard errors, squared


@dataclass(frozen=True, eq=False)
class _Solve:
    """The ridge problem of one question.

    Attributes:
        x: float64 [M, N], rows centred.
        power: float64 [N - 1], eigenvalues of X^T X on the contrasts, ascending.
        axes: float64 [N, N - 1], their directions.
        gain: float64 [N, N]: tau^2 (tau^2 X^T X + sigma^2)^-1 on the contrasts.
    """

    x: FloatArray
    power: FloatArray
    axes: FloatArray
    gain: FloatArray


def debias(
    scores: Scored,
    bias: PositionBias | None = None,
    method: str = "calibrated",
    *,
    level: float | None = None,
    solver: str = "auto",
    starts: int = 8,
    seed: int = 0,
    candidate: int | str | None = None,
) -> Utilities:
    """Utilities of the passages, freed of the places they were read at.

    "calibrated": with the bias d known the model is linear, ``y = X v + e``, and with lambda = sigma^2 / tau^2

        v = beta z + (X^T X + lambda)^-1 X^T (y - beta X z),   covariance sigma^2 (X^T X + lambda)^-1,

    to which the uncertainty of d is added to first order, times the calibration's inflation. "joint": the paper's
    problem, bias and utilities from this question alone, see `joint.solve`; it cannot tell an order of whole
    passages lists from its reverse, and says so.

    Args:
        scores: of one question, `PermutationScores` or `Observations`.
        bias: for "calibrated": what `calibrate` gave for the same reader, template, N, L and kind of score.
        method: "calibrated" or "joint".
        level: of the intervals; the calibration's by default.
        solver: of "calibrated": "fft" needs a cyclic design, "auto" takes it where there is one.
        starts, seed: of "joint".
        candidate: for a bias of kind "candidate".

    Raises:
        InputError: a bias that is missing, superfluous or was measured on something else (both are named); fewer
            than two orderings; scores that are not finite.
    """
    if method not in METHODS:
        raise InputError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    if solver not in SOLVERS:
        raise InputError(f"solver: expected one of {', '.join(SOLVERS)}, got {solver!r}")
    if method == "joint":
        from fastreader.moi.joint import solve

        if bias is not None:
            raise InputError("bias: method 'joint' finds its own bias, expected None")
        observed = scores if isinstance(scores, Observations) else observe(scores, candidate=candidate)
        return solve(observed, starts=starts, seed=seed)
    if bias is None:
        raise InputError("bias: method 'calibrated' needs a position bias (moi.calibrate), got None")
    observed = observe(scores, bias.kind, per_token=bias.per_token, candidate=candidate)
    check_bias(bias, observed)
    if len(observed) < 2:
        raise InputError("scores: expected at least two orderings, whose difference tells of the passages; got one")
    return _calibrated(observed, bias, bias.level if level is None else level, solver)


def check_bias(bias: PositionBias, observed: Observations) -> None:
    """Refuse a bias that was measured on something else than what was observed; both are named.

    Raises:
        InputError: of another N, L, kind of score, reader or template. An empty template digest or reader name is
            unknown and not compared.
    """
    ours, theirs = _identity(observed.reader, observed.template), _identity(bias.reader, bias.template)
    pairs: list[tuple[str, object, object]] = [
        ("passages N", bias.passages, observed.passages),
        ("places L", bias.length, observed.length),
        ("kind of score", bias.kind, observed.kind),
        ("scores per token", bias.per_token, observed.per_token),
    ]
    pairs += [(name, theirs[name], ours[name]) for name in ours if ours[name] and theirs[name]]
    if wrong := [f"{name}: bias {a!r}, scores {b!r}" for name, a, b in pairs if a != b]:
        raise InputError(f"bias: measured on something else than these scores: {'; '.join(wrong)}")


def _identity(reader: Mapping[str, str], template: str) -> dict[str, str]:
    return {"reader": reader.get("name", ""), "template": template}


def _calibrated(observed: Observations, bias: PositionBias, level: float, solver: str) -> Utilities:
    if not 0 < level < 1:
        raise InputError(f"level: expected a number in (0, 1), got {level}")
    n, d = observed.passages, bias.bias
    if n == 1:
        return _alone(bias, level)
    place = places_of(observed.permutations, n)
    y = observed.values - observed.values.mean()
    z = np.zeros(n) if observed.qg is None else observed.qg - observed.qg.mean()
    solve = _solve(observed.permutations, place, bias, solver)
    error = y - bias.beta * (solve.x @ z)
    utility = bias.beta * z + solve.gain @ (solve.x.T @ error)
    left = y - solve.x @ utility
    seen = solve.power > _SEEN * max(float(solve.power[-1]), 1e-300)
    clear = seen & _clear(solve, observed.permutations, bias)
    covariance = bias.sigma**2 * solve.gain
    if not seen.all():  # the prior is all there is: (tau^2 * 0 + sigma^2)^-1 sigma^2 tau^2
        blind = solve.axes[:, ~seen]
        covariance = covariance + (bias.tau**2 - _variance(covariance, blind)) * blind @ blind.T
    by_bias = _sensitivity(solve, observed.permutations, place, left, utility, bias.length)
    covariance = bias.inflation * (covariance + by_bias @ bias.covariance @ by_bias.T)
    covariance = 0.5 * (covariance + covariance.T)
    half = NormalDist().inv_cdf(0.5 + level / 2) * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    rank = int(clear.sum())
    flags, reasons = _cautions(observed, bias, place, rank)
    return Utilities(
        utility=utility,
        covariance=covariance,
        intervals=np.stack([utility - half, utility + half], axis=1),
        p_best=best(utility, covariance, bias.temperature),
        residual=float(np.sqrt(np.mean(left**2))),
        rank=rank,
        condition=float(np.sqrt(solve.power[-1] / solve.power[0])) if rank == n - 1 else float("inf"),
        identified=not set(flags) - {"uncovered"},
        reason="; ".join(reasons),
        method="calibrated",
        bias=d,
        flags=tuple(flags),
        level=level,
        sign=bias.sign,
    )


def _solve(permutations: IntArray, place: IntArray, bias: PositionBias, solver: str) -> _Solve:
    n = place.shape[1]
    x = np.append(bias.bias, 0.0)[place]
    x = x - x.mean(axis=0)
    found = cyclic.layout(permutations, n) if solver != "dense" else None
    if solver == "fft" and found is None:
        raise InputError(f"solver: 'fft' needs the N = {n} orderings of a cyclic design, in turn")
    basis = contrasts(n)
    if found is not None:
        g, f = found
        power = np.abs(cyclic.spectrum(bias.bias, f)) ** 2
        axes = _fourier(n)[:, np.argsort(power[_frequencies(n)], kind="stable")]
        laid = np.empty_like(axes)
        laid[g] = axes
        return _Solve(x, np.sort(power[_frequencies(n)]), laid, cyclic.gain(power, g, bias.sigma, bias.tau))
    power, vectors = np.linalg.eigh((x @ basis).T @ (x @ basis))
    power = np.maximum(power, 0.0)
    axes = basis @ vectors
    total = bias.tau**2 * power + bias.sigma**2
    seen = power > _SEEN * max(float(power[-1]), 1e-300)
    weight = np.divide(bias.tau**2, total, out=np.zeros_like(total), where=(total > 0) & (seen | (bias.sigma > 0)))
    return _Solve(x, power, axes, (axes * weight) @ axes.T)


@lru_cache(maxsize=16)
def _frequencies(n: int) -> IntArray:
    """Frequency of each column of `_fourier`."""
    return np.array([k for f in range(1, n // 2 + 1) for k in ([f] if 2 * f == n else [f, f])], dtype=np.int64)


@lru_cache(maxsize=16)
def _fourier(n: int) -> FloatArray:
    """Real orthonormal eigenvectors of every circulant that sum to zero: float64 [N, N - 1]."""
    turn = 2 * np.pi * np.arange(n) / n
    columns = []
    for f in range(1, n // 2 + 1):
        columns += [np.cos(f * turn)] if 2 * f == n else [np.cos(f * turn), np.sin(f * turn)]
    basis = np.stack(columns, axis=1)
    normal: FloatArray = basis / np.linalg.norm(basis, axis=0)
    return normal


def _variance(covariance: FloatArray, axes: FloatArray) -> FloatArray:
    value: FloatArray = np.einsum("nk,nm,mk->k", axes, covariance, axes)
    return value


def _clear(solve: _Solve, permutations: IntArray, bias: PositionBias) -> np.ndarray:
    """Whether each direction is seen more clearly than an error in the bias alone would make it seem: bool [N - 1]."""
    clear = np.ones(len(solve.power), dtype=bool)
    for k in np.flatnonzero(solve.power < 0.1 * solve.power.mean()):
        moved = solve.axes[:, k][permutations]  # [M, L]: X = moved @ d in this direction
        moved = moved - moved.mean(axis=0)
        clear[k] = solve.power[k] > _CLEAR * float(np.sum((moved @ bias.covariance) * moved))
    return clear


def _sensitivity(
    solve: _Solve, permutations: IntArray, place: IntArray, left: FloatArray, utility: FloatArray, length: int
) -> FloatArray:
    """Derivative of the utilities in the bias, float64 [N, L]: K^-1 (dX^T left - X^T dX v)."""
    n = place.shape[1]
    index = (np.arange(n) * (length + 1) + place).ravel()
    by_left = np.bincount(index, weights=np.repeat(left, n), minlength=n * (length + 1))
    direct = by_left.reshape(n, length + 1)[:, :length]
    value: FloatArray = solve.gain @ (direct - solve.x.T @ utility[permutations])
    return value


def best(utility: FloatArray, covariance: FloatArray, temperature: float = 1.0) -> FloatArray:
    """Probability that each passage has the largest utility, of a Gaussian posterior: float64 [N], sums to 1.

    By `DRAWS` fixed samples, so the same posterior always gives the same numbers. Raised to 1 / temperature.
    """
    n = len(utility)
    trace = float(np.trace(covariance))
    if trace <= 0:
        winners = (utility == utility.max()).astype(np.float64)
        share: FloatArray = winners / winners.sum()
        return share
    root = np.linalg.cholesky(covariance + 1e-10 * trace * np.eye(n))
    wins = np.bincount((_draws(n) @ root.T + utility).argmax(axis=1), minlength=n) / DRAWS
    return tempered(wins, temperature)


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


def uncovered(place: IntArray, length: int) -> tuple[int, int] | None:
    """The first (passage, place) that no ordering has, or None."""
    n = place.shape[1]
    index = np.arange(n) * (length + 1) + place
    count = np.bincount(index.ravel(), minlength=n * (length + 1)).reshape(n, length + 1)[:, :length]
    missing = np.argwhere(count == 0)
    return (int(missing[0][0]), int(missing[0][1])) if len(missing) else None


def _cautions(observed: Observations, bias: PositionBias, place: IntArray, rank: int) -> tuple[list[str], list[str]]:
    flags, reasons = [], []
    n = observed.passages
    if observed.constant:
        flags.append("constant")
        reasons.append("all orderings scored the same")
    if bias.flat:
        flags.append("flat")
        reasons.append(f"no position bias to tell passages by ({bias.reason})")
    elif not bias.identified:
        flags.append("ambiguous")
        reasons.append(f"the position bias is not identified ({bias.reason})")
    if rank < n - 1:
        flags.append("singular")
        reasons.append(f"these orderings determine {rank} of {n - 1} directions of utility under this bias")
    if bias.sign == "undetermined":
        flags.append("sign")
        reasons.append("the bias's sign is undetermined: matched order only")
    if (missing := uncovered(place, observed.length)) is not None:
        flags.append("uncovered")
        reasons.append(f"passage {missing[0]} is never read at place {missing[1]}")
    return flags, reasons


def _alone(bias: PositionBias, level: float) -> Utilities:
    zero = np.zeros(1)
    return Utilities(
        zero, np.zeros((1, 1)), np.zeros((1, 2)), np.ones(1), 0.0, 0, 1.0, True, "", "calibrated", bias.bias, (), level
    )
