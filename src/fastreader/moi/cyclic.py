"""Cyclic designs: X is circulant, so the ridge solve is a Fourier transform."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


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
    """The circulant ``spread^2 (spread^2 X^T X + noise^2)^-1`` without its constant direction: float64 [N, N].

    Args:
        power: float64 [N], squared modulus of the spectrum; entry 0 is not used.
        g: the order that is rotated.
        noise, spread: sigma and tau.
    """
    n = len(power)
    filter_ = np.zeros(n)
    np.divide(spread**2, spread**2 * power + noise**2, out=filter_, where=spread**2 * power + noise**2 > 0)
    filter_[0] = 0.0
    row = np.fft.ifft(filter_).real
    laid = row[(np.arange(n)[:, None] - np.arange(n)[None]) % n]
    out = np.empty((n, n))
    out[np.ix_(g, g)] = laid
    return out
