"""Orderings to score: cyclic ones for a known bias, random prefixes, or each passage alone."""

from __future__ import annotations

import itertools
import math

import numpy as np

from fastreader.core.checks import check_int, random_generator
from fastreader.moi.quantities.observations import IntArray
from fastreader.moi.quantities.position_bias import PositionBias
from fastreader.permutations import Design, pruned, random

_TRIED = 32  # arrangements compared
_WELL = 30.0  # condition above which a second square is added


def cyclic_for(bias: PositionBias, seed: int = 0, squares: int | None = None) -> Design:
    """Return N orderings, rotations of a random relabelling, that separate the passages best under this bias.

    Ordering k reads passage ``g[(k + f[j]) mod N]`` at place j; every passage stands at every place once. g is
    random. f is chosen among the plain rotation and some random arrangements for the least total posterior variance
    ``sum_w sigma^2 / (|d_f(w)|^2 + lambda)``, d_f the Fourier transform of the bias laid out by f; each costs N
    orderings. A bias that is symmetric under plain rotation (one direction is unseen at even N) rarely is under
    another f. If the best f is still ill-conditioned, a second square is added.

    Args:
        bias: for N passages, prefixes of L <= N places.
        seed: of relabelling and arrangements.
        squares: number of squares, N orderings each; None uses one, or two if one is ill-conditioned.

    Raises:
        InputError: if `squares` is above (N-1)!, the number of squares there are.
    """
    n = bias.num_passages
    if n == 1:
        return Design(np.zeros((1, 1), dtype=np.int64), 1, "moi")
    check_int("squares", squares, 1, math.factorial(n - 1), optional=True)
    rng = random_generator(seed)
    relabel = rng.permutation(n)
    arrangements = _arrangements(n, max(_TRIED, squares or 0), rng)
    laid = np.zeros((len(arrangements), n))  # the bias by each arrangement
    np.put_along_axis(laid, arrangements[:, : bias.length], bias.bias[None], axis=1)
    powers = np.abs(np.fft.fft(laid))[:, 1:] ** 2  # of the spectra, without frequency 0
    noise, spread = max(bias.sigma**2, 1e-12), max(bias.tau**2, 1e-12)
    chosen: list[int] = []
    total = np.zeros(n - 1)
    while len(chosen) < (squares or 2):
        if squares is None and chosen and total.min() * _WELL**2 >= total.max():
            break
        if len(chosen) == len(arrangements):
            break
        variance = (noise * spread / (spread * (total + powers) + noise)).sum(axis=1)
        variance[chosen] = np.inf
        chosen.append(int(np.argmin(variance)))
        total = total + powers[chosen[-1]]
    turns = np.arange(n)[:, None]
    rows = relabel[(turns + arrangements[chosen][:, None]) % n].reshape(-1, n)
    return Design(rows[:, : bias.length], n, "moi", {"squares": len(chosen), "seed": seed})


def prefixes(n: int, length: int | None = None, seed: int = 0) -> Design:
    """Return random orderings of part of the passages, which identify utilities by the joint solve without a bias.

    Args:
        n: number of passages.
        length: number of places L read; by default half the passages, rounded up (1 at N = 2, 2 at N = 3).
        seed: of the draw.

    Raises:
        InputError: if there are fewer than two passages, or `length` reads them all.
    """
    check_int("n", n, 2)
    length = max(min(2, n - 1), math.ceil(n / 2)) if length is None else length
    check_int("length", length, 1, n - 1)
    made = pruned(random(n, min(3 * n, math.factorial(n)), seed), length)
    return Design(made.permutations, n, "prefixes", {"length": length, "seed": seed})


def alone(n: int) -> Design:
    """Return N orderings of one passage each, for query likelihoods."""
    return Design(np.arange(n)[:, None], n, "alone")


def _arrangements(n: int, count: int, rng: np.random.Generator) -> IntArray:
    """Return the identity and other f with f(0) = 0, distinct: int64 [arrangements, N]."""
    found = {tuple(range(n)): None}
    if math.factorial(n - 1) <= 2 * count:
        for tail in itertools.permutations(range(1, n)):
            found[(0, *tail)] = None
    while len(found) < min(count, math.factorial(n - 1)):
        found[(0, *(rng.permutation(n - 1) + 1).tolist())] = None
    return np.array(list(found), dtype=np.int64)


def uncovered(place: IntArray, length: int) -> tuple[int, int] | None:
    """Return the first (passage, place) that no ordering has, or None."""
    n = place.shape[1]
    index = np.arange(n) * (length + 1) + place
    count = np.bincount(index.ravel(), minlength=n * (length + 1)).reshape(n, length + 1)[:, :length]
    missing = np.argwhere(count == 0)
    return (int(missing[0][0]), int(missing[0][1])) if len(missing) else None
