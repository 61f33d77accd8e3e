"""Solve cyclic designs: X is circulant, so the ridge solve is a Fourier transform."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastreader.moi.quantities.observations import FloatArray, IntArray

_SEEN = 1e-10  # of the largest eigenvalue: a direction below it shows only rounding


def layout(permutations: IntArray, passages: int) -> tuple[IntArray, IntArray] | None:
    """Return how N orderings are rotations of each other, or None if they are not.

    Returns:
        (g, f), int64 [N] each, f(0) = 0, such that ordering k reads passage ``g[(k + f[j]) mod N]`` at place j.
        The rotations of one order have f(j) = j; other f give Latin squares isotopic to it.
    """
    rows, length = permutations.shape
    if not rows == length == passages:
        return None
    g = permutations[:, 0]
    place = np.full(passages, -1, dtype=np.int64)
    place[g] = np.arange(passages)
    if (place < 0).any():
        return None
    f = place[permutations[0]]
    expected = g[(np.arange(passages)[:, None] + f[None]) % passages]
    return (g, f) if (expected == permutations).all() else None


def gain(power: FloatArray, g: IntArray, noise: float, spread: float) -> FloatArray:
    """Return the circulant ``spread^2 (spread^2 X^T X + noise^2)^-1`` on the seen directions: float64 [N, N].

    Args:
        power: float64 [N], squared modulus of the bias's Fourier transform; entry 0, the constant direction, is
            not used.
        g: the rotated order.
        noise, spread: sigma and tau.
    """
    n = len(power)
    row = np.fft.ifft(np.append(0.0, weights(power[1:], noise, spread))).real
    laid = row[(np.arange(n)[:, None] - np.arange(n)[None]) % n]
    out = np.empty((n, n))
    out[np.ix_(g, g)] = laid
    return out


def weights(power: FloatArray, noise: float, spread: float) -> FloatArray:
    """Return ``spread^2 / (spread^2 power + noise^2)`` for seen directions and 0 for the others: the shape of `power`.

    Unseen directions hold only rounding errors, which would grow without bound if there is no noise.
    """
    total = spread**2 * power + noise**2
    return np.divide(spread**2, total, out=np.zeros_like(total), where=seen(power) & (total > 0))


def seen(power: FloatArray) -> npt.NDArray[np.bool_]:
    """Return which directions have a power beyond rounding, relative to the largest."""
    return power > _SEEN * max(float(power.max(initial=0.0)), 1e-300)
