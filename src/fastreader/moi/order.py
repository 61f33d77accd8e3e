"""Reading orders from utilities: descending, and matched to the position bias."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def descending(utility: FloatArray) -> IntArray:
    """Passages by falling utility, ties in the retriever's order: int64 [N].

    >>> descending(np.array([0.0, 2.0, 0.0])).tolist()
    [1, 0, 2]
    """
    return np.argsort(-np.asarray(utility, dtype=np.float64), kind="stable")


def tied(values: FloatArray, near: float) -> FloatArray:
    """`values` where those no further than `near` from the next smaller are one, their mean: float64 [N].

    What a solve leaves of equal passages differs by rounding, which is no reason to turn the retriever's order around.

    >>> tied(np.array([1.0, 0.5, 1.0 + 1e-12]), 1e-9).tolist() == [1.0, 0.5, 1.0]
    False
    >>> descending(tied(np.array([1.0, 0.5, 1.0 + 1e-12]), 1e-9)).tolist()
    [0, 2, 1]
    """
    values = np.asarray(values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    group = np.concatenate([[0], np.cumsum(np.diff(values[order]) > near)])
    means = np.bincount(group, weights=values[order]) / np.bincount(group)
    out = np.empty(len(values))
    out[order] = means[group]
    return out


def matched(utility: FloatArray, bias: FloatArray) -> IntArray:
    """The order that maximises ``sum_j bias[j] utility[order[j]]``: int64 [N].

    By the rearrangement inequality the largest utility goes to the place of the largest bias, the second to the
    second, and so on. Replacing (bias, utility) by (c bias, utility / c) changes nothing for any c != 0, nor does
    shifting either, where the order is unique. Places beyond the bias's L count as places of bias 0.
    Ties are broken towards the retriever's order: equal utilities keep it, equal places fill from the first.

    >>> matched(np.array([5.0, 1.0, 3.0]), np.array([-0.2, -0.6, 0.8])).tolist()
    [2, 1, 0]
    """
    utility = np.asarray(utility, dtype=np.float64)
    weight = np.zeros(len(utility))
    weight[: len(bias)] = bias
    order = np.empty(len(utility), dtype=np.int64)
    order[np.argsort(-weight, kind="stable")] = descending(utility)
    # Equal utilities may stand in any of their places: let them stand in the retriever's order.
    for value in np.unique(utility):
        places = np.flatnonzero(utility[order] == value)
        if len(places) > 1:
            order[places] = np.sort(order[places])
    return order
