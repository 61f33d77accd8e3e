"""Weights as users give them and fits find them, put in the order of the answers and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.errors import InputError

FloatArray = npt.NDArray[np.float64]


def given(
    weights: Sequence[float] | Mapping[str, float] | None, retrievers: list[str] | None, width: int
) -> FloatArray:
    """w^r float64 [M] from numbers or numbers by name; all 1 from None.

    Raises:
        InputError: names that are not the retrievers', or weights that are none.
    """
    if weights is None:
        return np.ones(width)
    if not isinstance(weights, Mapping):
        return checked(weights, width, "retriever_weights")
    if retrievers is None:
        raise InputError("retriever_weights: by name, but the answers came without retrievers' names")
    if set(weights) != set(retrievers):
        raise InputError(
            f"retriever_weights: expected one for each of {', '.join(retrievers)}, got {', '.join(weights)}"
        )
    return checked([weights[name] for name in retrievers], width, "retriever_weights")


def learned(weights: FloatArray, names: list[str] | None, retrievers: list[str] | None, width: int) -> FloatArray:
    """w^r float64 [M] of a fit on the retrievers `names`, for `retrievers`; by place where either has no names.

    Raises:
        InputError: other retrievers.
    """
    if names and retrievers:
        if sorted(names) != sorted(retrievers):
            raise InputError(
                f"answers: expected those of the retrievers of the fit, {', '.join(names)}; got {', '.join(retrievers)}"
            )
        weights = weights[[names.index(name) for name in retrievers]]
    return checked(weights, width, "retriever_weights")


def checked(weights: Any, count: int, name: str) -> FloatArray:
    """`weights` as float64 [count], if they are `count` finite numbers from 0.

    Raises:
        InputError: they are not.
    """
    try:
        weights = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}: expected {count} numbers from 0, got {weights!r}") from None
    if weights.shape != (count,) or not np.isfinite(weights).all() or (weights < 0).any():
        raise InputError(f"{name}: expected {count} numbers from 0, got {weights.tolist()}")
    found: FloatArray = weights
    return found
