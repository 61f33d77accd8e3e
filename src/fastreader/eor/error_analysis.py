"""Which errors answers make (sections 2 and 3, App. B), and how they add up to failures (Eq. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.eor.ratios import BoolArray, FloatArray, indicators, ratio, share
from fastreader.eor.types import Answers, aligned
from fastreader.errors import InputError
from fastreader.statistics import answers as answer_measures


@dataclass(frozen=True, eq=False)
class Errors:
    """Indicators of the four errors (App. B), each bool [Q, M].

    Attributes:
        retriever: E_r, the document holds no right answer.
        hallucination: E_h, the answer is not in the document.
        extraction: E_e, the document holds a right answer, the answer is from the document, and wrong.
        luck: E_luck, neither is in the document, and the answer is right.
        correct: I, whether the answer is right.
        kept: bool [Q], questions whose answers are all short enough; `filtered` keeps these alone.
    """

    retriever: BoolArray
    hallucination: BoolArray
    extraction: BoolArray
    luck: BoolArray
    correct: BoolArray
    kept: BoolArray

    def filtered(self) -> Errors:
        """The questions of the paper's analysis, without those that `kept` leaves out."""
        parts = (self.retriever, self.hallucination, self.extraction, self.luck, self.correct, self.kept)
        return Errors(*(part[self.kept] for part in parts))

    def rates(self) -> dict[str, FloatArray]:
        """Share of the questions with each error, float64 [M] by name; NaN where there is no question."""
        return {name: share(getattr(self, name)) for name in ("retriever", "hallucination", "extraction", "luck")}


def errors(answers: Sequence[Answers], correct: Any, *, longest: int = 5) -> Errors:
    """Find each answer's error.

    A text is in a document where its normal form is a substring of the document's; an empty one is in none.

    Args:
        answers: Q of them, with documents and right answers.
        correct: bool or 0/1 [Q, M].
        longest: words of an answer at most for its question to be kept, counted as it was written, between white
            space.

    Raises:
        InputError: answers without documents or right answers, or a `correct` of another shape.
    """
    right = indicators("correct", correct)
    shape = right.shape
    found = {name: np.zeros(shape, dtype=bool) for name in ("retriever", "hallucination")}
    kept = np.ones(shape[0], dtype=bool)
    if len(answers) != shape[0]:
        raise InputError(f"correct: expected a row for each of {len(answers)} questions, got {shape[0]}")
    for q, row in enumerate(aligned(answers)):
        if len(row.texts) != shape[1]:
            raise InputError(f"correct: expected {len(row.texts)} columns, one a retriever, got {shape[1]}")
        if not row.documents or not row.right:
            raise InputError(f"answers[{q}]: expected documents and right answers; answer(..., keep_documents=True)")
        gold = [answer_measures.normalise(r) for r in row.right]
        for m, (text, document) in enumerate(zip(row.texts, row.documents, strict=True)):
            body, said = answer_measures.normalise(document.text), answer_measures.normalise(text or "")
            found["retriever"][q, m] = not any(g in body for g in gold if g)
            found["hallucination"][q, m] = not said or said not in body
            kept[q] &= len((text or "").split()) <= longest
    wrong_place, invented = found["retriever"], found["hallucination"]
    return Errors(
        retriever=wrong_place,
        hallucination=invented,
        extraction=~wrong_place & ~invented & ~right,
        luck=wrong_place & invented & right,
        correct=right,
        kept=kept,
    )


def error_rwr(found: Errors) -> dict[str, FloatArray]:
    """RWR of each error (Eq. 5 and App. B), float64 [M, M] by name; NaN where j makes it nowhere.

    RWR_E(i, j) = sum (1 - E_i) E_j / sum E_j, the share of j's errors that i avoids. For "extraction" only over
    questions where both documents hold a right answer; for "luck" only where both have E_r and E_h.
    """
    outside = found.retriever & found.hallucination
    everywhere = np.ones_like(found.retriever)
    return {
        "retriever": ratio(~found.retriever, found.retriever, everywhere),
        "hallucination": ratio(~found.hallucination, found.hallucination, everywhere),
        "extraction": ratio(~found.extraction, found.extraction, ~found.retriever),
        "luck": ratio(~found.luck, found.luck, outside),
    }


@dataclass(frozen=True, eq=False)
class Decomposition:
    """Failures against the errors they are made of (Eq. 4), each float64 or int64 [M].

    Attributes:
        failure: share of questions answered wrong.
        explained: mean of (1 - E_r)(E_h + E_e) + E_r (1 - E_luck), the indicators' form of the equation.
        residual: failure - explained; 0 but for right answers that are not literally in the document.
        right_outside: how many with E_r = 0 and E_h = 1 are right.
        right_without: how many with E_r = 1 and E_h = 0 are right.
    """

    failure: FloatArray
    explained: FloatArray
    residual: FloatArray
    right_outside: npt.NDArray[np.int64]
    right_without: npt.NDArray[np.int64]


def decomposition(found: Errors) -> Decomposition:
    """Eq. 4 for each retriever; the residual is -(right_outside + right_without) / Q exactly.

    Without a question, as where `Errors.filtered` leaves none, shares are NaN.
    """
    missed, invented = found.retriever, found.hallucination
    explained = share(np.where(missed, ~found.luck, invented | found.extraction))
    failure = share(~found.correct)
    return Decomposition(
        failure=failure,
        explained=explained,
        residual=failure - explained,
        right_outside=(~missed & invented & found.correct).sum(axis=0),
        right_without=(missed & ~invented & found.correct).sum(axis=0),
    )
