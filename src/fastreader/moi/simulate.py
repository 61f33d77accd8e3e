"""Scores drawn from MoI's model, to see what the estimators make of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fastreader.core.checks import random_generator
from fastreader.errors import InputError
from fastreader.moi.types import FloatArray, Observations
from fastreader.permutations import Design

SHAPES = ("flat", "decreasing", "u-shaped", "last-dominant")


@dataclass(frozen=True, eq=False)
class Simulated:
    """Questions with known truth.

    Attributes:
        observations: one a question.
        utilities: float64 [Q, N], true, nats, each row with mean zero.
        bias: float64 [L], true.
    """

    observations: list[Observations]
    utilities: FloatArray
    bias: FloatArray


def bias_shape(name: str, length: int) -> FloatArray:
    """A position bias of that shape: float64 [L], sum zero; unit norm, but for "flat", which is all zeros.

    Raises:
        InputError: an unknown name.
    """
    if name not in SHAPES:
        raise InputError(f"bias_shape: expected one of {', '.join(SHAPES)}, got {name!r}")
    x = np.linspace(-1.0, 1.0, length)
    raw = {"flat": 0.0 * x, "decreasing": -x, "u-shaped": x**2, "last-dominant": np.exp(3.0 * x)}[name]
    raw = raw - raw.mean()
    norm = float(np.linalg.norm(raw))
    shape: FloatArray = raw / norm if norm > 0 else raw
    return shape


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
    seed: int = 0,
) -> Simulated:
    """Draw ``s_i = c + sum_j bias[j] v[pi_i[j]] + e``: ``v ~ N(beta z, tau^2)``, z ~ N(0, 1), ``e ~ N(0, sigma^2)``.

    Args:
        bias: float64 [L].
        questions: Q.
        design: makes a question's orderings from a seed.
        passages: N; L by default.
        beta, tau, sigma: nats.
        query: whether the observations hold z as query likelihoods.
        seed: of everything drawn.
    """
    n = len(bias) if passages is None else passages
    rng = random_generator(seed)
    observations, utilities = [], []
    for _ in range(questions):
        orders = design(int(rng.integers(2**31))).permutations
        z = rng.standard_normal(n)
        v = beta * z + tau * rng.standard_normal(n)
        scores = rng.normal(-40.0, 5.0) + v[orders] @ bias + sigma * rng.standard_normal(len(orders))
        observations.append(Observations(scores, orders, n, qg=z - 20.0 if query else None))
        utilities.append(v - v.mean())
    return Simulated(observations, np.array(utilities), bias)
