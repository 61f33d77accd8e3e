"""Cyclic designs: X is circulant, so the ridge solve is a Fourier transform."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_SEEN = 1e-10  # of the largest eigenvalue: below it a direction is not seen at all, but for rounding


def layout(permutations: IntArray, passages: int) -> tuple[IntArray, IntArray] | None:
    """How N orderings are rotations of each other, or None where they are not.

    Returns:
        (g, f), int64 [N] each, f(0) = 0, such that ordering k reads passage ``g[(k + f[j]) mod N]`` at place j.
        The rotations of one order have f(j) = j; other f are Latin squares that are isotopes of it.
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


def spectrum(bias: FloatArray, f: IntArray) -> npt.NDArray[np.complex128]:
    """Fourier transform of the bias laid out along the rotation: complex128 [N].

    A frequency (other than 0) where it vanishes is a direction of utility that the design cannot see: for any bias
    that is symmetric about a place, or between two, one at even N.
    """
    laid = np.zeros(len(bias))
    laid[f] = bias
    value: npt.NDArray[np.complex128] = np.fft.fft(laid)
    return value


def gain(power: FloatArray, g: IntArray, noise: float, spread: float) -> FloatArray:
    """The circulant ``spread^2 (spread^2 X^T X + noise^2)^-1`` on the directions that are seen: float64 [N, N].

    Args:
        power: float64 [N], squared modulus of the spectrum; entry 0, the constant direction, is not used.
        g: the order that is rotated.
        noise, spread: sigma and tau.
    """
    n = len(power)
    row = np.fft.ifft(np.append(0.0, weights(power[1:], noise, spread))).real
    laid = row[(np.arange(n)[:, None] - np.arange(n)[None]) % n]
    out = np.empty((n, n))
    out[np.ix_(g, g)] = laid
    return out


def weights(power: FloatArray, noise: float, spread: float) -> FloatArray:
    """``spread^2 / (spread^2 power + noise^2)`` for directions that are seen, 0 for the others, as `power`.

    What is not seen has rounding errors alone behind it, which without noise would be blown up without bound.
    """
    total = spread**2 * power + noise**2
    value: FloatArray = np.divide(spread**2, total, out=np.zeros_like(total), where=seen(power) & (total > 0))
    return value


def seen(power: FloatArray) -> npt.NDArray[np.bool_]:
    """Which directions have a power beyond rounding, against the largest."""
    above: npt.NDArray[np.bool_] = power > _SEEN * max(float(power.max(initial=0.0)), 1e-300)
    return above
