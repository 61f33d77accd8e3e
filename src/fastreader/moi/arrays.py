"""Arrays of MoI's types: their dtypes, checks, and JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.errors import InputError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

KINDS = ("question", "joint", "candidate")


def to_dict(value: Any) -> dict[str, Any]:
    """A dataclass as JSON values: arrays and tuples as lists, numbers that are not finite as None."""
    out: dict[str, Any] = {}
    for f in dataclasses.fields(value):
        item = getattr(value, f.name)
        if isinstance(item, np.ndarray):
            item = item.tolist()
        elif isinstance(item, Mapping):
            item = dict(item)
        elif isinstance(item, tuple):
            item = list(item)
        elif isinstance(item, float) and not np.isfinite(item):
            item = None
        out[f.name] = item
    return out


def finite(name: str, value: Any, shape: tuple[int, ...]) -> FloatArray:
    """A read-only float64 copy of that shape.

    Raises:
        InputError: another shape, or a number that is not finite.
    """
    array = np.array(value, dtype=np.float64)
    if array.shape != shape:
        raise InputError(f"{name}: expected shape {list(shape)}, got {list(array.shape)}")
    if not np.isfinite(array).all():
        where = np.argwhere(~np.isfinite(array))[0]
        raise InputError(f"{name}: expected finite numbers, got {array[tuple(where)]} at {where.tolist()}")
    array.setflags(write=False)
    return array
