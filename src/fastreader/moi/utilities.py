"""Utilities: what a question's passages are worth, freed of the places they were read at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastreader.errors import InputError
from fastreader.moi.arrays import FloatArray, IntArray, to_dict
from fastreader.moi.order import descending, matched

ORDERS = ("matched", "descending")


@dataclass(frozen=True, eq=False)
class Utilities:
    """One question's passages, freed of the places they were read at.

    Utilities are relative: they are nats against the mean of the question's passages (their sum is zero), for a
    place of unit weight.

    Attributes:
        utility: float64 [N], nats, in the retriever's order of the passages.
        covariance: float64 [N, N], posterior; None for method "joint", which takes the scores as exact.
        intervals: float64 [N, 2], posterior interval of each utility; None for "joint".
        p_best: float64 [N], sums to 1: the probability that a passage has the largest utility. Under a calibration
            with gold passages it is raised to 1 / temperature, so that it says how often the passage is the gold
            one, which need not have the largest utility. None for "joint".
        residual: root mean square of what the model leaves of the scores, nats.
        rank: how many directions of utility the orderings determine, N - 1 is all; for "joint" of utility and bias
            together, by the Jacobian.
        condition: largest over smallest singular value of those directions; inf where the rank falls short.
        identified: whether the scores determine the order of the utilities.
        reason: why not, or a caution; empty where all is well.
        flags: what was found, by name: "constant", "flat", "singular", "ambiguous", "sign", "uncovered",
            "prior" (scores without the query likelihoods that the calibration's prior is by), "noise" (a joint solve,
            which takes the scores as exact).
        method: "calibrated" or "joint".
        bias: float64 [L], the position bias used, or found by "joint" (then it sums to 1).
        confidence_level: of the intervals.
        sign: of the position bias, as in `PositionBias`; "undetermined" for joint solves of whole orderings.
        temperature: of `p_best`; 1 where the calibration saw no gold passages.
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
        """Posterior standard deviation of each utility: float64 [N], nats; None for "joint"."""
        if self.covariance is None:
            return None
        deviation: FloatArray = np.sqrt(np.maximum(np.diag(self.covariance), 0.0))
        return deviation

    @property
    def score(self) -> FloatArray:
        """Sigmoid of the utility: float64 [N] in (0, 1), for consumers that expect a bounded score."""
        return _sigmoid(self.utility)

    def order(self, kind: str = "matched") -> IntArray:
        """Passage indices in reading order; ties stay in the retriever's order.

        Args:
            kind: "matched" puts the largest utility at the place of the largest bias (see `order.matched`), which
                depends on neither sign nor size of the bias; "descending" reads the largest utility first.

        Raises:
            InputError: another kind; or "descending" of a calibrated bias whose sign is undetermined.
        """
        if kind == "matched":
            return matched(self.utility, self.bias)
        if kind != "descending":
            raise InputError(f"order: expected one of {', '.join(ORDERS)}, got {kind!r}")
        if self.method == "calibrated" and self.sign == "undetermined":
            raise InputError(
                "order: 'descending' needs the bias's sign, which is undetermined; use 'matched', or calibrate with "
                "query likelihoods or a gold contrast"
            )
        return descending(self.utility)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values; an infinite condition is null."""
        return to_dict(self)


def _sigmoid(x: FloatArray) -> FloatArray:
    value: FloatArray = 0.5 * (1.0 + np.tanh(0.5 * x))
    return value
