"""debias: utilities of one question's passages from its scores, under a known position bias or with the joint solve."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri, stdtrit

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice, check_number, expect, given
from fastreader.moi.quantities.observations import FloatArray, IntArray, Observations, Scored, observe, passages_of
from fastreader.moi.quantities.position_bias import PositionBias, check_bias
from fastreader.moi.quantities.utilities import Utilities, tied
from fastreader.moi.solve import cyclic
from fastreader.moi.solve.joint import solve as solve_jointly
from fastreader.moi.solve.p_best import best
from fastreader.moi.solve.ridge import SOLVERS, Ridge, solve
from fastreader.scoring.results import PermutationScores

METHODS = ("calibrated", "joint")
_CLEAR = 16.0  # a direction's gain over that of an error in the bias alone: 4 standard errors, squared


@checked
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
    """Return the utilities of the passages, freed of the places they were read at.

    "calibrated": with the bias d known the model is linear, ``y = X v + e``, and with lambda = sigma^2 / tau^2

        v = beta z + (X^T X + lambda)^-1 X^T (y - beta X z),   covariance sigma^2 (X^T X + lambda)^-1,

    times the noise of this question against that of others, if the calibration knows how much it varies: intervals
    and P(best) then belong to a t distribution. The uncertainty of d is added to first order, times the
    calibration's inflation. "joint": the paper's problem, bias and utilities from this question alone, see
    `joint.solve`; for whole orderings it cannot tell an order from its reverse, and flags this.

    Args:
        scores: of one question, `PermutationScores` or `Observations`.
        bias: for "calibrated": the result of `calibrate` for the same reader, template, N, L and kind of score.
        method: "calibrated" or "joint".
        confidence_level: of the intervals; the calibration's by default.
        solver: of "calibrated": "dense", "fft" (cyclic designs only) or "auto", which uses "fft" if it can.
        starts, seed: of "joint".
        candidate: for a bias of kind "candidate".

    Raises:
        InputError: if the bias is missing, superfluous or was measured on something else (both are named), there are
            fewer than two orderings, or scores are not finite.
    """
    check_choice("method", method, METHODS)
    check_choice("solver", solver, SOLVERS)
    if method == "joint":
        expect(bias is None, "bias", "None with method 'joint', which finds its own bias", bias)
        expect(candidate is None, "candidate", "None with method 'joint' (give it observe(..., candidate=))", candidate)
        observed = scores if isinstance(scores, Observations) else observe(scores)
        return solve_jointly(observed, starts=starts, seed=seed)
    bias = given(bias, "bias: method 'calibrated' needs a position bias (moi.calibrate), got None")
    unknown = isinstance(scores, PermutationScores) and passages_of(scores) is None
    passages = bias.num_passages if unknown else None
    o = observe(scores, bias.kind, per_token=bias.per_token, candidate=candidate, passages=passages)
    check_bias(bias, o.passages, o.length, o.reader, o.template, kind=o.kind, per_token=o.per_token)
    enough = len(o) >= 2 or o.passages == 1
    expect(enough, "scores", "at least two orderings, whose difference shows the utilities", len(o))
    return calibrated(o, bias, confidence_level, solver)


def calibrated(
    observed: Observations, bias: PositionBias, confidence_level: float | None = None, solver: str = "auto"
) -> Utilities:
    """Solve under a bias measured on the same as the scores, which `debias` has checked."""
    confidence_level = bias.confidence_level if confidence_level is None else confidence_level
    check_number("confidence_level", confidence_level, above=0, below=1)
    n = observed.passages
    if n == 1:
        return _alone(bias, confidence_level)
    y = np.zeros(len(observed)) if observed.constant else observed.values - observed.values.mean()
    z = np.zeros(n) if observed.qg is None or np.ptp(observed.qg) == 0 else observed.qg - observed.qg.mean()
    ridge = solve(observed.permutations, bias, solver)
    if ridge.white is not None:
        y = ridge.white @ y
    error = y - bias.beta * (ridge.x @ z)
    utility = tied(bias.beta * z + ridge.gain @ (ridge.x.T @ error), observed.rounding)
    left = y - ridge.x @ utility  # whitened, as y is
    df, widened = _scale_of(left, utility - bias.beta * z, observed, bias)
    unexplained = observed.values - np.append(bias.bias, 0.0)[ridge.place] @ utility
    seen = cyclic.seen(ridge.power)  # the directions that the orderings see at all
    clear = seen & _clear(ridge, observed.permutations, bias)
    covariance = bias.sigma**2 * ridge.gain
    if not seen.all():  # only the prior is left: (tau^2 * 0 + sigma^2)^-1 sigma^2 tau^2
        blind = ridge.axes[:, ~seen]
        variance = np.einsum("nk,nm,mk->k", blind, covariance, blind)
        covariance = covariance + (bias.tau**2 - variance) * blind @ blind.T
    by_bias = _sensitivity(ridge, observed.permutations, left, utility, bias.length)
    covariance = bias.inflation * (widened * covariance + by_bias @ bias.covariance @ by_bias.T)
    covariance = 0.5 * (covariance + covariance.T)
    level = 0.5 + confidence_level / 2
    half = (stdtrit(df, level) if np.isfinite(df) else ndtri(level)) * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    rank = int(clear.sum())
    flags = _cautions(observed, bias, ridge, rank)
    return Utilities(
        utility=utility,
        covariance=covariance if np.isinf(df) else covariance * df / (df - 2),
        intervals=np.stack([utility - half, utility + half], axis=1),
        p_best=best(utility, covariance, bias.temperature, df),
        residual=float(unexplained.std()),
        rank=rank,
        condition=float(np.sqrt(ridge.power[-1] / ridge.power[0])) if rank == n - 1 else float("inf"),
        identified=not set(flags) - {"uncovered", "prior"},
        reason="; ".join(flags.values()),
        method="calibrated",
        bias=bias.bias,
        flags=tuple(flags),
        confidence_level=confidence_level,
        sign=bias.sign,
        temperature=bias.temperature,
    )


def _scale_of(
    left: FloatArray, deviation: FloatArray, observed: Observations, bias: PositionBias
) -> tuple[float, float]:
    """Return the degrees of freedom of the posterior, and the factor on its covariance from the question's own noise.

    Args:
        left: float64 [M], residuals, whitened.
        deviation: float64 [N], the utilities less their prior mean.
        observed: the scores.
        bias: the calibration.
    """
    if bias.df is None or bias.sigma == 0 or bias.tau == 0:
        return float("inf"), 1.0
    form = float(left @ left) / bias.sigma**2 + float(deviation @ deviation) / bias.tau**2
    df = bias.df + len(observed) - 1
    return df, (bias.df + form) / df


def _clear(ridge: Ridge, permutations: IntArray, bias: PositionBias) -> np.ndarray:
    """Return whether a direction is seen more clearly than an error in the bias could explain: bool [N - 1]."""
    clear = np.ones(len(ridge.power), dtype=bool)
    for k in np.flatnonzero(ridge.power < 0.1 * ridge.power.mean()):
        moved = ridge.axes[:, k][permutations]  # [M, L]: X = moved @ d in this direction
        moved = moved - moved.mean(axis=0) if ridge.white is None else ridge.white @ moved
        clear[k] = ridge.power[k] > _CLEAR * float(np.sum((moved @ bias.covariance) * moved))
    return clear


def _sensitivity(
    ridge: Ridge, permutations: IntArray, left: FloatArray, utility: FloatArray, length: int
) -> FloatArray:
    """Return the derivative of the utilities in the bias, float64 [N, L]: K^-1 (dX^T left - X^T dX v)."""
    n, read = len(utility), utility[permutations]
    if ridge.white is not None:
        left, read = ridge.white.T @ left, ridge.white @ read
    index = (np.arange(n) * (length + 1) + ridge.place).ravel()
    by_left = np.bincount(index, weights=np.repeat(left, n), minlength=n * (length + 1))
    direct = by_left.reshape(n, length + 1)[:, :length]
    return ridge.gain @ (direct - ridge.x.T @ read)


def _cautions(observed: Observations, bias: PositionBias, ridge: Ridge, rank: int) -> dict[str, str]:
    """Return the flags of a calibrated solve with their reasons."""
    found = {}
    n = observed.passages
    if observed.constant:
        found["constant"] = "all orderings scored the same"
    if bias.flat:
        found["flat"] = f"no position bias to separate passages by ({bias.reason})"
    elif not bias.identified:
        found["ambiguous"] = f"the position bias is not identified ({bias.reason})"
    if rank < n - 1:
        found["singular"] = f"these orderings determine {rank} of {n - 1} directions of utility under this bias"
    if bias.sign == "undetermined":
        found["sign"] = "the bias's sign is undetermined: matched order only"
    if bias.beta and observed.qg is None:
        found["prior"] = (
            "these scores lack the query likelihoods on which the calibration's prior rests (query_likelihood=True): "
            "utilities are shrunk too far and their intervals are too narrow"
        )
    if ridge.uncovered is not None:
        found["uncovered"] = "passage {} is never read at place {}".format(*ridge.uncovered)
    return found


def _alone(bias: PositionBias, confidence_level: float) -> Utilities:
    zero = np.zeros(1)
    shape = np.zeros((1, 1)), np.zeros((1, 2)), np.ones(1)
    return Utilities(zero, *shape, 0.0, 0, 1.0, True, "", "calibrated", bias.bias, (), confidence_level)
