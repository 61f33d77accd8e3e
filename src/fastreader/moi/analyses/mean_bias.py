"""The mean of each question's own position bias, by place (MoI, figure 6)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastreader.errors import InputError
from fastreader.moi.debias import debias
from fastreader.moi.observe import Scored
from fastreader.moi.types import FloatArray


@dataclass(frozen=True, eq=False)
class MeanBias:
    """Position coefficients of Q separate joint solves.

    Attributes:
        coefficients: float64 [Q, L], a of each question; rows sum to 1.
        identified: for each question whether its scores determine the order of its utilities at all.
    """

    coefficients: FloatArray
    identified: list[bool]

    @property
    def mean(self) -> FloatArray:
        """Mean by place: float64 [L]."""
        value: FloatArray = self.coefficients.mean(axis=0)
        return value

    @property
    def standard_error(self) -> FloatArray:
        """Of `mean`, over the questions: float64 [L].

        Raises:
            InputError: fewer than two questions.
        """
        count = len(self.coefficients)
        if count < 2:
            raise InputError(f"MeanBias.standard_error: expected at least 2 questions, got {count}")
        value: FloatArray = self.coefficients.std(axis=0, ddof=1) / np.sqrt(count)
        return value

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "mean": self.mean.tolist(),
            "coefficients": self.coefficients.tolist(),
            "identified": self.identified,
        }


def mean_bias(scores: Iterable[Scored], *, starts: int = 8, seed: int = 0) -> MeanBias:
    """Solve each question by itself, as the paper does, and keep the position coefficients a.

    Whole orderings leave the sign and the size of a - 1/N open, so that the mean over questions is drawn towards 1/N
    and hides the bias it is to show; `moi.calibrate` pools the questions in one likelihood instead. This is here to
    show the two side by side.

    Args:
        scores: of many questions of one number of places.
        starts, seed: of the joint solve.

    Raises:
        InputError: no questions, or questions of several numbers of places.
    """
    solved = []
    for q, scored in enumerate(scores):
        try:
            solved.append(debias(scored, method="joint", starts=starts, seed=seed))
        except InputError as error:
            raise InputError(f"scores: question {q}: {error}") from error
    if not solved:
        raise InputError("scores: expected at least one question, got none")
    if len(lengths := {len(u.bias) for u in solved}) > 1:
        raise InputError(f"scores: expected questions of one number of places, got {sorted(lengths)}")
    return MeanBias(np.stack([u.bias for u in solved]), [u.identified for u in solved])
