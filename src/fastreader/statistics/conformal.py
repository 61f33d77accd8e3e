"""Conformal sets: candidates that hold the right one with a stated probability, whatever the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked, checked_methods
from fastreader.core.checks import check_int, check_number, expect
from fastreader.data.record import Record
from fastreader.statistics.checks import FloatArray, numbers


@checked_methods
@dataclass(frozen=True)
class ConformalSets(Record):
    """A threshold from questions whose right answer is known: candidates of at least this probability are in the set.

    Split conformal prediction (Vovk et al. 2005) with the score 1 - p(right answer), which gives the smallest sets on
    average (Sadinle et al. 2019). If the new question is exchangeable with the calibration questions, its set holds
    the right answer with at least the probability `confidence_level`, over both draws.

    Attributes:
        threshold: in [0, 1]; 0 takes every candidate. A right answer that is no candidate cannot be in a set.
        confidence_level: the coverage that was asked for.
        num_questions: number n of calibration questions.
        reachable: False if too many of them lack the right answer among their candidates, or n is too small, for any
            set of candidates to reach the coverage; the sets then hold all candidates.
    """

    threshold: float
    confidence_level: float
    num_questions: int
    reachable: bool

    @classmethod
    def fit(
        cls,
        probabilities: Sequence[Sequence[float] | npt.NDArray[np.floating]],
        right: Sequence[int | None],
        confidence_level: float = 0.9,
    ) -> ConformalSets:
        """Return the threshold from calibration questions, which must not have been used to fit the probabilities.

        Args:
            probabilities: for each question K candidates' probabilities, in [0, 1]; K may differ.
            right: for each question the index of the right candidate; None if no candidate is right.
            confidence_level: coverage of the sets, between 0 and 1.

        Raises:
            InputError: if there is no question, the lengths differ, a probability is not in [0, 1], or an index is not
                that of a candidate.
        """
        check_number("confidence_level", confidence_level, above=0, below=1)
        count = len(probabilities)
        expect(count > 0 and len(right) == count, "right", f"one index for each of {count} questions", len(right))
        scores = np.full(count, np.inf)
        for i, (values, index) in enumerate(zip(probabilities, right, strict=True)):
            found = _probabilities(f"probabilities[{i}]", values)
            if index is not None:
                check_int(f"right[{i}]", index, 0, len(found) - 1)
                scores[i] = 1.0 - found[index]
        # The ceil((n + 1) level)-th smallest score; the new question's own score counts as one of n + 1. Rounding in
        # the product must not raise a whole number to the next one.
        rank = math.ceil((count + 1) * confidence_level - 1e-9)
        limit = math.inf if rank > count else float(np.sort(scores)[rank - 1])
        reachable = math.isfinite(limit)
        return cls(1.0 - limit if reachable else 0.0, float(confidence_level), count, reachable)

    def set_of(self, probabilities: Sequence[float] | npt.NDArray[np.floating]) -> list[int]:
        """Return the indices of the candidates in the set, the most probable first.

        Args:
            probabilities: of the K candidates of one question, in [0, 1].

        Raises:
            InputError: if there is no candidate, or a probability is not in [0, 1].
        """
        values = _probabilities("probabilities", probabilities)
        order = np.argsort(-values, kind="stable")
        # The same arithmetic as in `fit`, so that a score equal to the limit is within it.
        return [int(i) for i in order if 1.0 - values[i] <= 1.0 - self.threshold + 1e-12]


@checked
def coverage(sets: Sequence[Sequence[int]], right: Sequence[int | None]) -> float:
    """Return the share of questions whose set holds the right candidate, which None never is.

    Raises:
        InputError: if there is no question, or the lengths differ.
    """
    one_each = len(sets) == len(right) and len(sets) > 0
    expect(one_each, "right", f"one index for each of {len(sets)} sets, of which there is one", len(right))
    return float(np.mean([index is not None and index in found for found, index in zip(sets, right, strict=True)]))


def _probabilities(name: str, values: Any) -> FloatArray:
    found = numbers(name, values)
    expect(bool(found.min() >= -1e-9 and found.max() <= 1 + 1e-9), name, "probabilities in [0, 1]", found.tolist())
    return found
