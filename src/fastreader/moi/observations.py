"""Observations: one question's scores under many orderings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fastreader.errors import InputError
from fastreader.moi.arrays import KINDS, FloatArray, IntArray, finite

ROUNDING = 1e-9  # of the largest score: differences that say nothing


@dataclass(frozen=True, eq=False)
class Observations:
    """One question's scores under M orderings, as MoI's model explains them.

    Attributes:
        values: float64 [M], nats: s_i of ordering i.
        permutations: int64 [M, L], row i lists passage indices in reading order.
        passages: N, how many passages the question has; L <= N.
        kind: what was scored: "question" (log P(q | pi)), "joint" (log P(q | pi) + log P(pi)) or "candidate"
            (a candidate answer's log-likelihood).
        per_token: whether `values` are divided by the number of tokens scored.
        qg: float64 [N], the question's log-likelihood after each passage alone (query likelihood), in the unit of
            a question's `values`; None where it was not scored.
        reader: what scored them, as `Reader.describe` says.
        template: digest of the prompt's texts (`prompts.Template.digest`); "" where unknown.
        id: the question's identifier.
        truncated: tokens cut off each passage to fit the context; passages read whole are absent.

    Raises:
        InputError: shapes that do not fit, a value that is not finite, or an ordering that is none.
    """

    values: FloatArray
    permutations: IntArray
    passages: int
    kind: str = "question"
    per_token: bool = False
    qg: FloatArray | None = None
    reader: Mapping[str, str] = field(default_factory=dict)
    template: str = ""
    id: str | None = None
    truncated: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"Observations.kind: expected one of {', '.join(KINDS)}, got {self.kind!r}")
        rows = np.asarray(self.permutations)
        if rows.ndim != 2 or rows.dtype.kind not in "iu" or not rows.size:
            raise InputError(f"Observations.permutations: expected integers [M, L], got {rows.dtype} {rows.shape}")
        ordered = np.sort(rows, axis=1)
        if ordered[:, 0].min() < 0 or ordered[:, -1].max() >= self.passages or (np.diff(ordered, axis=1) == 0).any():
            raise InputError(
                f"Observations.permutations: expected each row to list distinct passages in [0, {self.passages})"
            )
        object.__setattr__(self, "permutations", rows.astype(np.int64))
        object.__setattr__(self, "values", finite("Observations.values", self.values, (len(rows),)))
        if self.qg is not None:
            object.__setattr__(self, "qg", finite("Observations.qg", self.qg, (self.passages,)))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def length(self) -> int:
        """Places L of each ordering."""
        return int(self.permutations.shape[1])

    @property
    def constant(self) -> bool:
        """Whether all orderings scored the same, beyond rounding: nothing can be told from them."""
        return float(np.ptp(self.values)) <= ROUNDING * largest(self)


def largest(observed: Observations) -> float:
    """The size of the largest score, 1 at least."""
    return max(1.0, float(np.abs(observed.values).max()))
