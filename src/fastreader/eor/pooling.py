"""Pool an answer's similarities to the others (App. C.4), with one function per formula.

Each function takes similarities [..., M, M] and the voting answers, bool [..., M], and returns [..., M]. Answer m is
compared with the N voters other than itself; without voters the pooled value is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.eor.types import BoolArray, FloatArray, IntArray

ROUNDING = 1e-9


def others(voters: BoolArray) -> BoolArray:
    """Return bool [..., M, M]: whether n votes on m, true for every voter but m itself."""
    mask: BoolArray = voters[..., None, :] & ~np.eye(voters.shape[-1], dtype=bool)
    return mask


def mean(similarity: FloatArray, voters: BoolArray, threshold: float = 0.8) -> FloatArray:
    """Return (1 / N) sum over n of s_mn, without using `threshold`."""
    mask = others(voters)
    count = mask.sum(axis=-1)
    total = np.where(mask, similarity, 0.0).sum(axis=-1)
    pooled: FloatArray = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
    return pooled


def maximum(similarity: FloatArray, voters: BoolArray, threshold: float = 0.8) -> FloatArray:
    """Return max over n of s_mn, without using `threshold`."""
    mask = others(voters)
    best: FloatArray = np.where(mask, similarity, -np.inf).max(axis=-1)
    return np.where(mask.any(axis=-1), best, 0.0)


def agreeing(similarity: FloatArray, voters: BoolArray, threshold: float) -> IntArray:
    """Return c_m, the number of n with s_mn > threshold by more than rounding."""
    count: IntArray = (others(voters) & (similarity > threshold + ROUNDING)).sum(axis=-1)
    return count


def majority(similarity: FloatArray, voters: BoolArray, threshold: float = 0.8) -> FloatArray:
    """Return 1 if c_m >= N / 2, else 0."""
    return majority_of(agreeing(similarity, voters, threshold), others(voters).sum(axis=-1))


def majority_of(agree: npt.NDArray[np.integer[Any]], count: IntArray) -> FloatArray:
    """Return `majority` from c_m and N."""
    pooled: FloatArray = ((agree >= count / 2) & (count > 0)).astype(np.float64)
    return pooled


def plurality(
    similarity: FloatArray, voters: BoolArray, threshold: float = 0.8, candidates: BoolArray | None = None
) -> FloatArray:
    """Return 1 if c_m = max over k of c_k, else 0.

    Args:
        similarity, voters, threshold: same as in `majority`.
        candidates: bool [..., M], the k of the maximum; the voters by default.
    """
    count = others(voters).sum(axis=-1)
    return plurality_of(agreeing(similarity, voters, threshold), count, voters if candidates is None else candidates)


def plurality_of(agree: npt.NDArray[np.integer[Any]], count: IntArray, candidates: BoolArray) -> FloatArray:
    """Return `plurality` from c_m, N and the k of the maximum."""
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
