"""Scores drawn from MoI's model, to test the estimators on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fastreader.core.checks import check_choice, random_generator
from fastreader.moi.quantities.observations import FloatArray, Observations
from fastreader.moi.quantities.score_noise import covariance
from fastreader.permutations import Design

SHAPES = ("flat", "decreasing", "u-shaped", "last-dominant")


@dataclass(frozen=True, eq=False)
class Simulated:
    """Questions with known truth.

    Attributes:
        observations: one for each question.
        utilities: float64 [Q, N], true, nats, each row with mean zero.
        bias: float64 [L], true.
    """

    observations: list[Observations]
    utilities: FloatArray
    bias: FloatArray


def bias_shape(name: str, length: int) -> FloatArray:
    """Return a position bias of a named shape: float64 [L], sum zero, unit norm. "flat" is all zeros.

    Raises:
        InputError: if `name` is not one of `SHAPES`.
    """
    check_choice("bias_shape", name, SHAPES)
    x = np.linspace(-1.0, 1.0, length)
    raw = {"flat": 0.0 * x, "decreasing": -x, "u-shaped": x**2, "last-dominant": np.exp(3.0 * x)}[name]
    raw = raw - raw.mean()
    norm = float(np.linalg.norm(raw))
    return np.asarray(raw / norm if norm > 0 else raw, dtype=np.float64)


def simulate(
    bias: FloatArray,
    questions: int,
    design: Callable[[int], Design],
    *,
    passages: int | None = None,
    beta: float = 1.0,
    tau: float = 1.0,
    sigma: float = 0.5,
    query: bool = True,
    df: float | None = None,
    shared: FloatArray | None = None,
    seed: int = 0,
) -> Simulated:
    """Draw ``s_i = c + sum_j bias[j] v[pi_i[j]] + e``: ``v ~ N(beta z, tau^2)``, z ~ N(0, 1), ``e ~ N(0, sigma^2)``.

    Args:
        bias: float64 [L].
        questions: number of questions Q.
        design: returns a question's orderings for a seed.
        passages: N; L by default.
        beta, tau, sigma: nats.
        query: whether the observations hold z as query likelihoods.
        df: degrees of freedom of the scale of a question, on the variances of e and of v around beta z; None
            draws no scales.
        shared: float64 [L], correlation of e by the number of first places shared; None draws independent noise.
        seed: of all draws.
    """
    n = len(bias) if passages is None else passages
    rng = random_generator(seed)
    observations, utilities = [], []
    for _ in range(questions):
        orders = design(int(rng.integers(2**31))).permutations
        z = rng.standard_normal(n)
        scale = 1.0 if df is None else float(np.sqrt(df / rng.chisquare(df)))
        v = beta * z + scale * tau * rng.standard_normal(n)
        constant, noise = rng.normal(-40.0, 5.0), rng.standard_normal(len(orders))
        if shared is not None:
            noise = np.linalg.cholesky(covariance(orders, shared)) @ noise
        scores = constant + v[orders] @ bias + scale * sigma * noise
        observations.append(Observations(scores, orders, n, qg=z - 20.0 if query else None))
        utilities.append(v - v.mean())
    return Simulated(observations, np.array(utilities), bias)
