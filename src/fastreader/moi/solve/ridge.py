"""Solve the ridge problem of one question under a known bias, densely or by Fourier transform."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fastreader.core.checks import require
from fastreader.moi.quantities.designs import uncovered
from fastreader.moi.quantities.observations import FloatArray, IntArray
from fastreader.moi.quantities.position_bias import PositionBias
from fastreader.moi.quantities.score_noise import covariance, whitener
from fastreader.moi.solve import cyclic
from fastreader.moi.solve.likelihood import contrasts, places_of

SOLVERS = ("auto", "dense", "fft")


@dataclass(frozen=True, eq=False)
class Ridge:
    """X of a question's orderings under a bias, and the inverse for its posterior, without any score.

    Attributes:
        place: int64 [M, N], the place of each passage, L for a passage that is not read.
        uncovered: first (passage, place) that no ordering has, or None.
        x: float64 [M, N], rows centred (and whitened if noise is shared).
        power: float64 [N - 1], eigenvalues of X^T X on the contrasts, ascending.
        axes: float64 [N, N - 1], their directions.
        gain: float64 [N, N]: tau^2 (tau^2 X^T X + sigma^2)^-1 on the seen contrasts, zero on the others.
        white: float64 [M, M], which whitens the scores; None if centring them does.
    """

    place: IntArray
    uncovered: tuple[int, int] | None
    x: FloatArray
    power: FloatArray
    axes: FloatArray
    gain: FloatArray
    white: FloatArray | None = None


def solve(permutations: IntArray, bias: PositionBias, solver: str) -> Ridge:
    """Return X and its inverse, shared by questions with equal orderings under one bias.

    Args:
        permutations: int64 [M, L].
        bias: the weights of the places, for N passages.
        solver: "dense", "fft" (rotations of one order only) or "auto", which uses "fft" for such rotations.

    Raises:
        InputError: if `solver` is "fft" and the orderings are not rotations of one order.
    """
    return _solved(permutations.astype(np.int64).tobytes(), bias, solver)


@lru_cache(maxsize=64)
def _solved(permutations_bytes: bytes, bias: PositionBias, solver: str) -> Ridge:
    n = bias.num_passages
    permutations = np.frombuffer(permutations_bytes, dtype=np.int64).reshape(-1, bias.length)
    place = places_of(permutations, n)
    missing = uncovered(place, bias.length)
    x = np.append(bias.bias, 0.0)[place]
    white = _whitener(permutations, bias)
    x = x - x.mean(axis=0) if white is None else white @ x
    found = cyclic.layout(permutations, n) if solver != "dense" else None
    usable = solver != "fft" or found is not None
    require(usable, f"solver: 'fft' needs the N = {n} orderings of a cyclic design, in their order")
    basis = contrasts(n)
    if found is not None:
        g, f = found
        laid = np.zeros(n)  # the bias along the rotation
        laid[f] = bias.bias
        # A direction of utility whose frequency has no power is unseen; at even N a bias that is symmetric about a
        # place, or between two, has one.
        power = np.abs(np.fft.fft(laid)) ** 2
        by_axis = power[_frequencies(n)]
        axes = np.empty((n, n - 1))
        axes[g] = _fourier(n)[:, np.argsort(by_axis, kind="stable")]
        return Ridge(place, missing, x, np.sort(by_axis), axes, cyclic.gain(power, g, bias.sigma, bias.tau))
    power, vectors = np.linalg.eigh((x @ basis).T @ (x @ basis))
    power = np.maximum(power, 0.0)
    axes = basis @ vectors
    weight = cyclic.weights(power, bias.sigma, bias.tau)
    return Ridge(place, missing, x, power, axes, (axes * weight) @ axes.T, white)


def _whitener(permutations: IntArray, bias: PositionBias) -> FloatArray | None:
    """Return what makes noise independent, or None if it is, as in rotations, which start with different passages."""
    if bias.shared is None or len(np.unique(permutations[:, 0])) == len(permutations):
        return None
    return whitener(covariance(permutations, bias.shared), np.ones(len(permutations), dtype=bool))


@lru_cache(maxsize=16)
def _frequencies(n: int) -> IntArray:
    """Return the frequency of each column of `_fourier`."""
    return np.array([k for f in range(1, n // 2 + 1) for k in ([f] if 2 * f == n else [f, f])], dtype=np.int64)


@lru_cache(maxsize=16)
def _fourier(n: int) -> FloatArray:
    """Return the real orthonormal eigenvectors of every circulant that sum to zero: float64 [N, N - 1]."""
    turn = 2 * np.pi * np.arange(n) / n
    columns = []
    for f in range(1, n // 2 + 1):
        columns += [np.cos(f * turn)] if 2 * f == n else [np.cos(f * turn), np.sin(f * turn)]
    basis = np.stack(columns, axis=1)
    return np.asarray(basis / np.linalg.norm(basis, axis=0), dtype=np.float64)
