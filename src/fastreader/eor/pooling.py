"""Pooling of an answer's similarities to the others (App. C.4), one function a formula.

Each takes similarities [..., M, M] and the answers that vote, bool [..., M], and gives [..., M]. Answer m is compared
with the N voters other than itself; with none the pooled value is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.errors import InputError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

ROUNDING = 1e-9


def others(voters: BoolArray) -> BoolArray:
    """bool [..., M, M]: whether n votes on m, which is every voter but m itself."""
    mask: BoolArray = voters[..., None, :] & ~np.eye(voters.shape[-1], dtype=bool)
    return mask


def mean(similarity: FloatArray, voters: BoolArray, threshold: float = 0.8) -> FloatArray:
    """(1 / N) sum over n of s_mn; `threshold` is not used."""
    mask = others(voters)
    count = mask.sum(axis=-1)
    total = np.where(mask, similarity, 0.0).sum(axis=-1)
    pooled: FloatArray = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
    return pooled


def maximum(similarity: FloatArray, voters: BoolArray, threshold: float = 0.8) -> FloatArray:
    """max over n of s_mn; `threshold` is not used."""
    mask = others(voters)
    best: FloatArray = np.where(mask, similarity, -np.inf).max(axis=-1)
    return np.where(mask.any(axis=-1), best, 0.0)


def agreeing(similarity: FloatArray, voters: BoolArray, threshold: float) -> npt.NDArray[np.int64]:
    """c_m, how many n have s_mn > threshold; what is larger by rounding alone is not."""
    count: npt.NDArray[np.int64] = (others(voters) & (similarity > threshold + ROUNDING)).sum(axis=-1)
    return count


def majority(similarity: FloatArray, voters: BoolArray, threshold: float = 0.8) -> FloatArray:
    """1 where c_m >= N / 2, else 0."""
    return majority_of(agreeing(similarity, voters, threshold), others(voters).sum(axis=-1))


def majority_of(agree: npt.NDArray[np.integer[Any]], count: npt.NDArray[np.int64]) -> FloatArray:
    """`majority` from c_m and N."""
    pooled: FloatArray = ((agree >= count / 2) & (count > 0)).astype(np.float64)
    return pooled


def plurality(
    similarity: FloatArray, voters: BoolArray, threshold: float = 0.8, candidates: BoolArray | None = None
) -> FloatArray:
    """1 where c_m is the largest over all k, else 0.

    Args:
        similarity, voters, threshold: as above.
        candidates: bool [..., M], the k over which the largest is taken; the voters by default.
    """
    count = others(voters).sum(axis=-1)
    return plurality_of(agreeing(similarity, voters, threshold), count, voters if candidates is None else candidates)


def plurality_of(
    agree: npt.NDArray[np.integer[Any]], count: npt.NDArray[np.int64], candidates: BoolArray
) -> FloatArray:
    """`plurality` from c_m, N and the k over which the largest is taken."""
    heard = candidates & (count > 0)
    largest = np.where(heard, agree, -1).max(axis=-1, keepdims=True)
    pooled: FloatArray = (heard & (agree == largest)).astype(np.float64)
    return pooled


POOLINGS: dict[str, Callable[..., FloatArray]] = {
    "mean": mean,
    "max": maximum,
    "majority": majority,
    "plurality": plurality,
}


def pooling(name: str) -> Callable[..., FloatArray]:
    """The function of a pooling's name: mean, max, majority or plurality.

    Raises:
        InputError: another name.
    """
    if name not in POOLINGS:
        raise InputError(f"pooling: expected one of {', '.join(POOLINGS)}, got {name!r}")
    return POOLINGS[name]
