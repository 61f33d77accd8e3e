"""The paper's joint solve: position bias and utilities from one question's scores alone.

Mixture-of-Intervention (arXiv 2412.10684), section 3.1:

    minimise  sum_i (sum_j a[j] u[pi_i[j]] - s_i)^2   subject to  sum_j a[j] = 1,  0 <= a[j] <= 1.        (1)

Ambiguity of (1). For whole orderings write a = 1/N + da and u = mean(u) + du: then (c da, du / c) fits exactly as well
for every c != 0 that keeps a in bounds, negative c included, so the order found may be the reverse of the right one at
zero residual. For N cyclic orderings any invertible a fits exactly, each with another order. Both are flagged; prefixes
of random orderings (L < N) do determine (1).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fastreader.core.checks import MOST_STARTS, check_int, random_generator
from fastreader.moi.quantities.designs import uncovered
from fastreader.moi.quantities.observations import FloatArray, IntArray, Observations
from fastreader.moi.quantities.utilities import Utilities, descending, tied
from fastreader.moi.solve.likelihood import places_of

_AS_GOOD = 1e-6  # of the scores' variance: solutions whose mean squared residual differs by less fit equally well
_EQUAL = 1e-4  # standard deviations of the scores: utilities nearer than this count as equal


def solve(observed: Observations, *, starts: int = 8, seed: int = 0) -> Utilities:
    """Return the best of several solutions of (1) by SLSQP, and whether the scores determine it.

    Args:
        observed: one question's scores.
        starts: number of random starts; none is an even bias, which is a saddle with constant utilities.
        seed: of the starts.

    Returns:
        `Utilities` of method "joint": no intervals, since (1) takes the scores as exact; `bias` is a; `rank` and
        `condition` belong to the Jacobian of the scores in (a, u), whose full rank is L - 1 + N.

    Raises:
        InputError: if `starts` < 1.
    """
    check_int("starts", starts, 1, MOST_STARTS)
    n, length, rows = observed.passages, observed.length, len(observed)
    place = places_of(observed.permutations, n)
    mean, scale = float(observed.values.mean()), float(observed.values.std())
    if observed.constant or n == 1:
        return _constant(observed)
    s = (observed.values - mean) / scale
    rng = random_generator(seed)
    tried = [_descend(rng.dirichlet(np.ones(length)), observed.permutations, place, s) for _ in range(starts)]
    losses = np.array([loss for _, _, loss in tried])
    a, u, _ = tried[int(losses.argmin())]
    values = np.linalg.svd(jacobian(a, u, observed.permutations, place), compute_uv=False)
    rank = int((values > 1e-6 * values[0]).sum())
    full = length - 1 + n
    flags, reasons = [], []
    if rank < full - (length == n):
        flags.append("singular")
        reasons.append(f"{rows} orderings determine {rank} of the {full} unknowns: other biases fit exactly as well")
    elif length == n:
        reasons.append("the reverse order fits exactly as well: neither sign nor size of the bias is determined")
    elif _orders_differ([t for t in tried if t[2] <= losses.min() + _AS_GOOD * rows]):
        reasons.append("solutions of other orders fit as well")
    if reasons:
        flags.append("ambiguous")
    if length == n:
        flags.append("sign")
    if uncovered(place, length) is not None:
        flags.append("uncovered")
    flags.append("noise")
    reasons.append("scores are taken as exact, so utilities have no intervals")
    return Utilities(
        utility=scale * tied(u - u.mean(), _EQUAL),
        covariance=None,
        intervals=None,
        p_best=None,
        residual=scale * float(np.sqrt(np.mean((predicted(a, u, observed.permutations) - s) ** 2))),
        rank=rank,
        condition=float(values[0] / values[full - 1]) if rank == full else float("inf"),
        identified=not set(flags) - {"uncovered", "noise"},
        reason="; ".join(reasons),
        method="joint",
        bias=a,
        flags=tuple(flags),
        sign="undetermined" if length == n else "query_likelihood",
    )


def turned(found: Utilities, agreement: float) -> Utilities:
    """Return a solution of whole orderings whose bias agrees with what is known of it.

    Args:
        found: a solution whose sign is undetermined.
        agreement: below 0 to take the solution with the opposite bias and utilities, which fits as well.

    Returns:
        The solution, or the one in which the bias's differences from 1 / L are reversed, and made smaller where a
        weight would leave [0, 1]; the utilities' differences grow by as much.
    """
    if agreement >= 0:
        return found
    even = 1.0 / len(found.bias)
    away = found.bias - even
    smaller = min(1.0, even / float(away.max())) if away.max() > 0 else 1.0
    return replace(found, bias=even - smaller * away, utility=-found.utility / smaller)


def predicted(a: FloatArray, u: FloatArray, permutations: IntArray) -> FloatArray:
    """Return ``sum_j a[j] u[pi_i[j]]``: float64 [M]."""
    return u[permutations] @ a


def objective(unknown: FloatArray, permutations: IntArray, place: IntArray, s: FloatArray) -> tuple[float, FloatArray]:
    """Return half the mean squared error of (1) and its gradient in (a, u)."""
    length = permutations.shape[1]
    a, u = unknown[:length], unknown[length:]
    read = u[permutations]
    error = read @ a - s
    gradient = np.concatenate([error @ read, error @ np.append(a, 0.0)[place]]) / len(s)
    return 0.5 * float(np.mean(error**2)), gradient


def jacobian(a: FloatArray, u: FloatArray, permutations: IntArray, place: IntArray) -> FloatArray:
    """Return the Jacobian of the scores in a[1:] (a[0] = 1 - their sum) and u: float64 [M, L - 1 + N]."""
    read = u[permutations]
    return np.concatenate([read[:, 1:] - read[:, :1], np.append(a, 0.0)[place]], axis=1)


def _descend(
    a: FloatArray, permutations: IntArray, place: IntArray, s: FloatArray
) -> tuple[FloatArray, FloatArray, float]:
    from scipy.optimize import minimize

    length, n = permutations.shape[1], place.shape[1]
    u = np.linalg.lstsq(np.append(a, 0.0)[place], s, rcond=1e-3)[0]
    of_sum = np.concatenate([np.ones(length), np.zeros(n)])
    found: Any = minimize(
        objective,
        np.concatenate([a, u]),
        args=(permutations, place, s),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * length + [(None, None)] * n,
        constraints={"type": "eq", "fun": lambda x: x[:length].sum() - 1.0, "jac": lambda x: of_sum},
        options={"maxiter": 500, "ftol": 1e-14},
    )
    a, u = found.x[:length], found.x[length:]
    return a, u, float(np.sum((predicted(a, u, permutations) - s) ** 2))


def _orders_differ(solutions: list[tuple[FloatArray, FloatArray, float]]) -> bool:
    orders = {tuple(descending(tied(u - u.mean(), _EQUAL)).tolist()) for _, u, _ in solutions}
    return len(orders) > 1


def _constant(observed: Observations) -> Utilities:
    n = observed.passages
    one = n == 1
    return Utilities(
        utility=np.zeros(n),
        covariance=None,
        intervals=None,
        p_best=None,
        residual=0.0,
        rank=0,
        condition=1.0 if one else float("inf"),
        identified=one,
        reason="" if one else "all orderings scored the same",
        method="joint",
        bias=np.full(observed.length, 1.0 / observed.length),
        flags=() if one else ("constant",),
    )
