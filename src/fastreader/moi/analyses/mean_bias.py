"""The mean of each question's own position bias, by place (MoI, figure 6)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastreader.core.checked import checked, checked_methods
from fastreader.core.checks import expect, located
from fastreader.moi.quantities.observations import FloatArray, Scored
from fastreader.moi.solve.debias import debias


@checked_methods
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
        """Standard error of `mean` over the questions: float64 [L].

        Raises:
            InputError: if there are fewer than two questions.
        """
        count = len(self.coefficients)
        expect(count >= 2, "MeanBias.standard_error", "at least 2 questions", count)
        value: FloatArray = self.coefficients.std(axis=0, ddof=1) / np.sqrt(count)
        return value

    def to_dict(self) -> dict[str, Any]:
        """Return mean, coefficients and `identified` as JSON values."""
        return {"mean": self.mean.tolist(), "coefficients": self.coefficients.tolist(), "identified": self.identified}


@checked
def mean_bias(scores: Iterable[Scored], *, starts: int = 8, seed: int = 0) -> MeanBias:
    """Solve each question by itself, as the paper does, and keep the position coefficients a.

    Whole orderings leave the sign and the size of a - 1/N undetermined, so the mean over questions shrinks towards
    1/N and hides the bias that it should show; `moi.calibrate` pools the questions in one likelihood instead. This
    function exists to show the two side by side.

    Args:
        scores: of many questions with equal numbers of places.
        starts, seed: of the joint solve.

    Raises:
        InputError: if there are no questions, or their numbers of places differ.
    """
    solved = []
    for q, scored in enumerate(scores):
        with located(f"scores: question {q}"):
            solved.append(debias(scored, method="joint", starts=starts, seed=seed))
    lengths = sorted({len(u.bias) for u in solved})
    expect(len(lengths) == 1, "scores", "at least one question, all with one number of places", lengths)
    return MeanBias(np.stack([u.bias for u in solved]), [u.identified for u in solved])
