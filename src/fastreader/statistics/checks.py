"""Check arguments of the statistics and return them as arrays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.core.checks import check_number, expect, rejecting

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def numbers(name: str, values: Any) -> FloatArray:
    """Return `values` as float64 [n], checked to be a list of at least one number, all finite."""
    with rejecting(f"{name}: expected numbers, got something else", TypeError, ValueError, RuntimeError):
        array = np.asarray(values, dtype=np.float64)
    expect(array.ndim == 1 and len(array) > 0, name, "a list of at least one number", values)
    for place in np.flatnonzero(~np.isfinite(array)).tolist():
        check_number(f"{name}[{place}]", float(array[place]))
    return array


def pair(a: Any, b: Any) -> tuple[FloatArray, FloatArray]:
    """Return `a` and `b` as float64 [n], checked as `numbers` of equal length."""
    first, second = numbers("a", a), numbers("b", b)
    expect(len(first) == len(second), "b", f"{len(first)} numbers, one for each in a", len(second))
    return first, second


def differences(a: Any, b: Any) -> FloatArray:
    """Return a - b as float64 [n], with differences that are equal up to rounding made equal.

    Differences closer than 2**-40 of their pair's values count as equal, so that 1 - 2/3 and 2/3 - 1/3, two different
    floats, tie in ranks and have no spread.
    """
    first, second = pair(a, b)
    found, near = first - second, np.maximum(np.abs(first), np.abs(second)) * 2.0**-40
    found[np.abs(found) <= near] = 0.0
    sizes, order = np.abs(found), np.argsort(np.abs(found), kind="stable")
    # A size takes its lower neighbour's value only if both tolerances allow it: a pair of large values ties no others.
    for below, this in itertools.pairwise(order):
        if sizes[this] - sizes[below] <= min(near[this], near[below]):
            sizes[this] = sizes[below]
    return np.copysign(sizes, found)


def binary_pair(a: Any, b: Any) -> tuple[BoolArray, BoolArray]:
    """Return `a` and `b` as bool [n], checked to be a `pair` of 0 and 1."""
    first, second = pair(a, b)
    for name, array in (("a", first), ("b", second)):
        odd = array[~np.isin(array, (0.0, 1.0))].tolist()
        expect(not odd, name, "only 0 (wrong) and 1 (right)", odd)
    return first.astype(bool), second.astype(bool)


def cluster_index(clusters: Sequence[Any] | npt.NDArray[Any] | None, n: int) -> npt.NDArray[np.int64]:
    """Return n labels as numbers 0..G-1 in order of appearance, int64 [n], or 0..n-1 without labels."""
    if clusters is None:
        return np.arange(n)
    expect(len(clusters) == n, "clusters", f"one label for each of {n} values", len(clusters))
    known: dict[Any, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in clusters], dtype=np.int64)
