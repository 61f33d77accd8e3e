"""debias: utilities of one question's passages from its scores, under a known position bias or with the joint ridge."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from fastreader.errors import InputError
from fastreader.moi.designs import uncovered
from fastreader.moi.identity import differing
from fastreader.moi.observations import ROUNDING, largest
from fastreader.moi.observe import Scored, observe, passages_of
from fastreader.moi.order import tied
from fastreader.moi.solve.likelihood import places_of
from fastreader.moi.solve.p_best import best
from fastreader.moi.solve.ridge import SOLVERS, Ridge, solve
from fastreader.moi.types import FloatArray, IntArray, Observations, PositionBias, Utilities, check_position_bias
from fastreader.scoring.results import PermutationScores

METHODS = ("calibrated", "joint")
_CLEAR = 16.0  # a direction's gain over what an error in the bias alone would give it: 4 standard errors, squared


def debias(
    scores: Scored,
    bias: PositionBias | None = None,
    method: str = "calibrated",
    *,
    confidence_level: float | None = None,
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
        confidence_level: of the intervals; the calibration's by default.
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
        from fastreader.moi.solve.joint import solve as solve_jointly

        if bias is not None:
            raise InputError("bias: method 'joint' finds its own bias, expected None")
        if candidate is not None:
            raise InputError("candidate: goes with a bias of kind 'candidate'; give method 'joint' observe(...) of it")
        observed = scores if isinstance(scores, Observations) else observe(scores)
        return solve_jointly(observed, starts=starts, seed=seed)
    if bias is None:
        raise InputError("bias: method 'calibrated' needs a position bias (moi.calibrate), got None")
    check_position_bias(bias)
    unknown = isinstance(scores, PermutationScores) and passages_of(scores) is None
    passages = bias.num_passages if unknown else None
    observed = observe(scores, bias.kind, per_token=bias.per_token, candidate=candidate, passages=passages)
    check_bias(bias, observed)
    if len(observed) < 2 and observed.passages > 1:
        raise InputError("scores: expected at least two orderings, whose difference tells of the passages; got one")
    return _calibrated(observed, bias, bias.confidence_level if confidence_level is None else confidence_level, solver)


def check_bias(bias: PositionBias, observed: Observations) -> None:
    """Refuse a bias that was measured on something else than what was observed; both are named.

    Raises:
        InputError: of another N, L, kind of score, reader or template. An empty template digest or reader name is
            unknown and not compared.
    """
    pairs: list[tuple[str, object, object]] = [
        ("passages N", bias.num_passages, observed.passages),
        ("places L", bias.length, observed.length),
        ("kind of score", bias.kind, observed.kind),
        ("scores per token", bias.per_token, observed.per_token),
    ]
    wrong = [f"{name}: bias {a!r}, scores {b!r}" for name, a, b in pairs if a != b]
    wrong += differing("bias", bias.reader, bias.template, "scores", observed.reader, observed.template)
    if wrong:
        raise InputError(f"bias: measured on something else than these scores: {'; '.join(wrong)}")


def _calibrated(observed: Observations, bias: PositionBias, confidence_level: float, solver: str) -> Utilities:
    if not 0 < confidence_level < 1:
        raise InputError(f"level: expected a number in (0, 1), got {confidence_level}")
    n, d = observed.passages, bias.bias
    if n == 1:
        return _alone(bias, confidence_level)
    place = places_of(observed.permutations, n)
    y = np.zeros(len(observed)) if observed.constant else observed.values - observed.values.mean()
    z = np.zeros(n) if observed.qg is None or np.ptp(observed.qg) == 0 else observed.qg - observed.qg.mean()
    ridge = solve(observed.permutations, place, bias, solver)
    error = y - bias.beta * (ridge.x @ z)
    utility = tied(bias.beta * z + ridge.gain @ (ridge.x.T @ error), ROUNDING * largest(observed))
    left = y - ridge.x @ utility
    seen = ridge.seen
    clear = seen & _clear(ridge, observed.permutations, bias)
    covariance = bias.sigma**2 * ridge.gain
    if not seen.all():  # the prior is all there is: (tau^2 * 0 + sigma^2)^-1 sigma^2 tau^2
        blind = ridge.axes[:, ~seen]
        covariance = covariance + (bias.tau**2 - _variance(covariance, blind)) * blind @ blind.T
    by_bias = _sensitivity(ridge, observed.permutations, place, left, utility, bias.length)
    covariance = bias.inflation * (covariance + by_bias @ bias.covariance @ by_bias.T)
    covariance = 0.5 * (covariance + covariance.T)
    half = NormalDist().inv_cdf(0.5 + confidence_level / 2) * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    rank = int(clear.sum())
    flags, reasons = _cautions(observed, bias, place, rank)
    return Utilities(
        utility=utility,
        covariance=covariance,
        intervals=np.stack([utility - half, utility + half], axis=1),
        p_best=best(utility, covariance, bias.temperature),
        residual=float(np.sqrt(np.mean(left**2))),
        rank=rank,
        condition=float(np.sqrt(ridge.power[-1] / ridge.power[0])) if rank == n - 1 else float("inf"),
        identified=not set(flags) - {"uncovered", "prior"},
        reason="; ".join(reasons),
        method="calibrated",
        bias=d,
        flags=tuple(flags),
        confidence_level=confidence_level,
        sign=bias.sign,
        temperature=bias.temperature,
    )


def _variance(covariance: FloatArray, axes: FloatArray) -> FloatArray:
    value: FloatArray = np.einsum("nk,nm,mk->k", axes, covariance, axes)
    return value


def _clear(ridge: Ridge, permutations: IntArray, bias: PositionBias) -> np.ndarray:
    """Whether each direction is seen more clearly than an error in the bias alone would make it seem: bool [N - 1]."""
    clear = np.ones(len(ridge.power), dtype=bool)
    for k in np.flatnonzero(ridge.power < 0.1 * ridge.power.mean()):
        moved = ridge.axes[:, k][permutations]  # [M, L]: X = moved @ d in this direction
        moved = moved - moved.mean(axis=0)
        clear[k] = ridge.power[k] > _CLEAR * float(np.sum((moved @ bias.covariance) * moved))
    return clear


def _sensitivity(
    ridge: Ridge, permutations: IntArray, place: IntArray, left: FloatArray, utility: FloatArray, length: int
) -> FloatArray:
    """Derivative of the utilities in the bias, float64 [N, L]: K^-1 (dX^T left - X^T dX v)."""
    n = place.shape[1]
    index = (np.arange(n) * (length + 1) + place).ravel()
    by_left = np.bincount(index, weights=np.repeat(left, n), minlength=n * (length + 1))
    direct = by_left.reshape(n, length + 1)[:, :length]
    value: FloatArray = ridge.gain @ (direct - ridge.x.T @ utility[permutations])
    return value


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
    if bias.beta and observed.qg is None:
        flags.append("prior")
        reasons.append(
            "these scores lack the query likelihoods on which the calibration's prior rests (query_likelihood=True): "
            "utilities are shrunk too far and their intervals are too narrow"
        )
    if (missing := uncovered(place, observed.length)) is not None:
        flags.append("uncovered")
        reasons.append(f"passage {missing[0]} is never read at place {missing[1]}")
    return flags, reasons


def _alone(bias: PositionBias, confidence_level: float) -> Utilities:
    zero = np.zeros(1)
    return Utilities(
        zero,
        np.zeros((1, 1)),
        np.zeros((1, 2)),
        np.ones(1),
        0.0,
        0,
        1.0,
        True,
        "",
        "calibrated",
        bias.bias,
        (),
        confidence_level,
    )
