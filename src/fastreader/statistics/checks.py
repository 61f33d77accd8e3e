"""What the statistics ask of their arguments."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.errors import InputError

FloatArray = npt.NDArray[np.float64]


def numbers(function: str, name: str, values: Any) -> FloatArray:
    """`values` as float64 [n], n at least 1, all finite.

    Raises:
        InputError: naming the function and the argument.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{function}: {name} must be numbers ({error})") from error
    if array.ndim != 1 or not len(array):
        raise InputError(f"{function}: {name} must be a list of at least one number, got shape {list(array.shape)}")
    if not np.isfinite(array).all():
        at = int(np.flatnonzero(~np.isfinite(array))[0])
        raise InputError(f"{function}: {name} must be finite, got {array[at]} at {at}")
    return array


def pair(function: str, a: Any, b: Any) -> tuple[FloatArray, FloatArray]:
    """Both as `numbers`, of one length.

    Raises:
        InputError: naming the function.
    """
    first, second = numbers(function, "a", a), numbers(function, "b", b)
    if len(first) != len(second):
        raise InputError(f"{function}: a and b must be pairs, got {len(first)} and {len(second)} numbers")
    return first, second


def differences(function: str, a: Any, b: Any) -> FloatArray:
    """a - b as float64 [n]: what is equal but for rounding, to 40 bits of a pair's values, ties, and is 0 where it is.

    1 - 2/3 and 2/3 - 1/3 are one difference to ranks and spreads, and two floats.

    Raises:
        InputError: as `pair`.
    """
    first, second = pair(function, a, b)
    found, near = first - second, np.maximum(np.abs(first), np.abs(second)) * 2.0**-40
    found[np.abs(found) <= near] = 0.0
    sizes, order = np.abs(found), np.argsort(np.abs(found), kind="stable")
    # Each as its neighbour below where both pairs are known no better: one pair of large values ties no others.
    for below, this in itertools.pairwise(order):
        if sizes[this] - sizes[below] <= min(near[this], near[below]):
            sizes[this] = sizes[below]
    return np.copysign(sizes, found)


def binary_pair(function: str, a: Any, b: Any) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Both as bool [n].

    Raises:
        InputError: naming the function, where a value is neither 0 nor 1.
    """
    first, second = pair(function, a, b)
    for name, array in (("a", first), ("b", second)):
        if (odd := ~np.isin(array, (0.0, 1.0))).any():
            raise InputError(f"{function}: {name} must be 0 or 1 (wrong or right), got {array[odd][0]}")
    return first.astype(bool), second.astype(bool)


def check_confidence_level(function: str, confidence_level: float) -> None:
    """Raise InputError unless 0 < confidence_level < 1."""
    if not 0 < confidence_level < 1:
        raise InputError(f"{function}: confidence_level must be between 0 and 1, got {confidence_level}")


def cluster_index(function: str, clusters: Sequence[Any] | npt.NDArray[Any] | None, n: int) -> npt.NDArray[np.int64]:
    """Labels as numbers 0..G-1 in order of appearance: int64 [n]; every value its own where there are none.

    Raises:
        InputError: labels of another length than n.
    """
    if clusters is None:
        return np.arange(n)
    if len(clusters) != n:
        raise InputError(f"{function}: clusters must have one label a value, got {len(clusters)} labels, {n} values")
    known: dict[Any, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in clusters], dtype=np.int64)
