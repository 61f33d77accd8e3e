"""Indicators of questions and retrievers, and the ratios of them that the measures are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.errors import InputError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def indicators(name: str, values: Any) -> BoolArray:
    """bool [Q, M] from 0 and 1.

    Raises:
        InputError: other numbers, or another shape.
    """
    found = np.asarray(values)
    if found.ndim != 2 or not found.size:
        raise InputError(f"{name}: expected one row a question and one column a retriever, got {list(found.shape)}")
    if not np.isin(found, (0, 1)).all():
        raise InputError(f"{name}: expected 0 and 1 alone; put a threshold on graded correctness first")
    return found.astype(bool)


def ratio(wins: BoolArray, misses: BoolArray, both: BoolArray | None = None) -> FloatArray:
    """sum_n wins_i misses_j / sum_n misses_j, over questions where i and j are both in `both`; NaN for 0 / 0."""
    within = np.ones_like(wins) if both is None else both
    upper = (wins & within).astype(np.float64).T @ (misses & within)
    lower = within.astype(np.float64).T @ (misses & within)
    found: FloatArray = np.divide(upper, lower, out=np.full_like(upper, np.nan), where=lower > 0)
    return found


def share(values: BoolArray) -> FloatArray:
    """Mean over the questions, [Q, M] to [M]; NaN without any."""
    if not len(values):
        return np.full(values.shape[1], np.nan)
    found: FloatArray = values.mean(axis=0)
    return found


def mean_beside(table: FloatArray, axis: int) -> FloatArray:
    """Mean over an axis without the diagonal and without NaN; NaN where nothing is left."""
    defined = ~np.isnan(table) & ~np.eye(len(table), dtype=bool)
    count = defined.sum(axis=axis)
    total = np.where(defined, table, 0.0).sum(axis=axis)
    mean: FloatArray = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return mean
