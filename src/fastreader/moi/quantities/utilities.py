"""Utilities: the worth of a question's passages, freed of their places, and the reading orders that follow from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastreader.core.checked import checked_methods
from fastreader.core.checks import check_choice, require
from fastreader.data.record import Record
from fastreader.moi.quantities.observations import FloatArray, IntArray

ORDERS = ("matched", "descending")


@checked_methods
@dataclass(frozen=True, eq=False)
class Utilities(Record):
    """The worth of one question's passages, freed of the places they were read at.

    Utilities are relative: nats against the mean of the question's passages (their sum is zero), for a place of unit
    weight.

    Attributes:
        utility: float64 [N], nats, in the retriever's order of the passages.
        covariance: float64 [N, N], posterior; None for the methods "joint" and "query_likelihood", which take the
            scores as exact.
        intervals: float64 [N, 2], posterior interval of each utility; None without a covariance.
        p_best: float64 [N], sums to 1: the probability that a passage has the largest utility. A calibration with
            gold passages raises it to 1 / temperature, so that it estimates how often the passage is the gold one,
            which need not have the largest utility. None without a covariance.
        residual: root mean square of the scores' part that the model leaves unexplained, nats.
        rank: number of directions of utility that the orderings determine, at most N - 1; for "joint" of utility and
            bias together, by the Jacobian.
        condition: largest over smallest singular value of those directions; inf if the rank falls short.
        identified: whether the scores determine the order of the utilities.
        reason: why not, or a caution; empty if there is nothing to report.
        flags: names of the findings: "constant", "flat", "singular", "ambiguous", "sign", "uncovered", "prior" (the
            scores lack the query likelihoods on which the calibration's prior rests), "noise" (a joint solve, which
            takes the scores as exact).
        method: "calibrated", "joint", or "query_likelihood": of each passage alone, its mean subtracted.
        bias: float64 [L], the position bias used, or found by "joint" (then it sums to 1).
        confidence_level: of the intervals.
        sign: of the position bias, as in `PositionBias`; "undetermined" for joint solves of whole orderings.
        temperature: of `p_best`; 1 if the calibration had no gold passages.
    """

    utility: FloatArray
    covariance: FloatArray | None
    intervals: FloatArray | None
    p_best: FloatArray | None
    residual: float
    rank: int
    condition: float
    identified: bool
    reason: str
    method: str
    bias: FloatArray
    flags: tuple[str, ...] = ()
    confidence_level: float = 0.95
    sign: str = "query_likelihood"
    temperature: float = 1.0

    def __len__(self) -> int:
        return len(self.utility)

    @property
    def std(self) -> FloatArray | None:
        """Posterior standard deviation of each utility: float64 [N], nats, or None for "joint"."""
        if self.covariance is None:
            return None
        return np.sqrt(np.maximum(np.diag(self.covariance), 0.0))

    @property
    def relevance(self) -> FloatArray:
        """Sigmoid of the utility: float64 [N] in (0, 1), for consumers that expect a bounded score."""
        return 0.5 * (1.0 + np.tanh(0.5 * self.utility))

    def order(self, kind: str = "matched") -> IntArray:
        """Return the passage indices in reading order, ties in the retriever's order.

        Args:
            kind: "matched" puts the largest utility at the place of the largest bias (see `matched`), which depends
                on neither sign nor size of the bias; "descending" reads the largest utility first.

        Raises:
            InputError: if `kind` is unknown, or "descending" for a calibrated bias of undetermined sign.
        """
        check_choice("kind", kind, ORDERS)
        if kind == "matched":
            return matched(self.utility, self.bias)
        require(
            self.method != "calibrated" or self.sign != "undetermined",
            "order: 'descending' needs the bias's sign, which is undetermined; use 'matched', or calibrate with query "
            "likelihoods or a gold contrast",
        )
        return descending(self.utility)


def of_query_likelihoods(values: FloatArray, places: int) -> Utilities:
    """Return query likelihoods, float64 [N] nats, as utilities that no position bias was taken from."""
    n = len(values)
    return Utilities(
        utility=values - values.mean(),
        covariance=None,
        intervals=None,
        p_best=None,
        residual=0.0,
        rank=n - 1,
        condition=1.0,
        identified=True,
        reason="",
        method="query_likelihood",
        bias=np.zeros(places),
    )


def descending(utility: FloatArray) -> IntArray:
    """Return the passages by falling utility, ties in the retriever's order: int64 [N].

    >>> descending(np.array([0.0, 2.0, 0.0])).tolist()
    [1, 0, 2]
    """
    return np.argsort(-np.asarray(utility, dtype=np.float64), kind="stable")


def tied(values: FloatArray, near: float) -> FloatArray:
    """Return `values` with each chain of neighbours at most `near` apart replaced by its mean: float64 [N].

    A solve returns equal utilities with different rounding, which must not change the retriever's order.

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
    """Return the order that maximises ``sum_j bias[j] utility[order[j]]``: int64 [N].

    By the rearrangement inequality the largest utility goes to the place of the largest bias, the second to the
    second, and so on. If that order is unique, neither replacing (bias, utility) by (c bias, utility / c), c != 0, nor
    shifting bias or utility changes it. Places beyond the bias's L have bias 0.
    Ties are broken towards the retriever's order: equal utilities keep it, equal places fill from the first.

    >>> matched(np.array([5.0, 1.0, 3.0]), np.array([-0.2, -0.6, 0.8])).tolist()
    [2, 1, 0]
    """
    utility = np.asarray(utility, dtype=np.float64)
    weight = np.zeros(len(utility))
    weight[: len(bias)] = bias
    order = np.empty(len(utility), dtype=np.int64)
    order[np.argsort(-weight, kind="stable")] = descending(utility)
    # Passages of equal utility can swap places: put them in the retriever's order.
    for value in np.unique(utility):
        places = np.flatnonzero(utility[order] == value)
        if len(places) > 1:
            order[places] = np.sort(order[places])
    return order
