"""How inconsistent retrievers are (sections 2 and 3): who answers what the others miss, and which errors they make.

I_m(n) is 1 where retriever m answers question n correctly. All take I as ``correct``, bool or 0/1, [Q, M].
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader import answers as answer_measures
from fastreader.eor.types import Answers, aligned
from fastreader.errors import InputError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Measure = Callable[[str, str, Sequence[str]], float]

MEASURES: dict[str, Callable[[str, Sequence[str]], float]] = {
    "em": answer_measures.exact_match,
    "f1": answer_measures.f1,
    "contained": answer_measures.contained,
}
_MOST_RETRIEVERS = 20  # 2^20 ensembles


def correctness(answers: Sequence[Answers], measure: str | Measure = "em") -> FloatArray:
    """Correctness of every answer against its question's right ones.

    Args:
        answers: Q of them, of the same M retrievers, with right answers; columns are in the order of the first.
        measure: "em", "f1" or "contained" (`fastreader.answers`); or a function of (question, answer, right
            answers), such as a BEM model or a judge, thresholded where a yes or no is wanted.

    Returns:
        float64 [Q, M]; 0 where the retriever failed.

    Raises:
        InputError: another name, a question without right answers, or a measure that gives no finite number.
    """
    if isinstance(measure, str) and measure not in MEASURES:
        raise InputError(f"measure: expected one of {', '.join(MEASURES)} or a function, got {measure!r}")
    rows = []
    for i, row in enumerate(aligned(answers)):
        if not row.right:
            raise InputError(f"answers[{i}]: expected right answers, got none for {row.question[:60]!r}")
        rows.append([0.0 if text is None else _measured(measure, row, text) for text in row.texts])
    if not rows:
        raise InputError("answers: expected at least one question, got none")
    found = np.array(rows, dtype=np.float64)
    if not np.isfinite(found).all():
        q, m = np.argwhere(~np.isfinite(found))[0].tolist()
        raise InputError(f"measure: expected a finite number, got {found[q, m]} for {answers[q].texts[m]!r}")
    return found


def _measured(measure: str | Measure, row: Answers, text: str) -> float:
    if isinstance(measure, str):
        return MEASURES[measure](text, row.right)
    return float(measure(row.question, text, row.right))


def rwr(correct: Any) -> FloatArray:
    """Relative win ratio (Eq. 1), float64 [M, M]: RWR(i, j) = sum_n I_i (1 - I_j) / sum_n (1 - I_j).

    The share of the questions that j misses and i answers. NaN in column j where j misses none.
    """
    right = _indicators("correct", correct)
    return _ratio(right, ~right)


def mrwr(correct: Any) -> FloatArray:
    """Mean relative win ratio (Eq. 2), float64 [M]: of RWR(i, j) over j != i, undefined ones left out."""
    return _mean_beside(rwr(correct), axis=1)


def mrlr(correct: Any) -> FloatArray:
    """Mean relative lose ratio (Eq. 3), float64 [M]: of RWR(j, i) over j != i, undefined ones left out.

    0 where i answers all that any other does; NaN where i misses nothing.
    """
    return _mean_beside(rwr(correct), axis=0)


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
        return {name: _share(getattr(self, name)) for name in ("retriever", "hallucination", "extraction", "luck")}


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
    right = _indicators("correct", correct)
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
        "retriever": _ratio(~found.retriever, found.retriever, everywhere),
        "hallucination": _ratio(~found.hallucination, found.hallucination, everywhere),
        "extraction": _ratio(~found.extraction, found.extraction, ~found.retriever),
        "luck": _ratio(~found.luck, found.luck, outside),
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
    explained = _share(np.where(missed, ~found.luck, invented | found.extraction))
    failure = _share(~found.correct)
    return Decomposition(
        failure=failure,
        explained=explained,
        residual=failure - explained,
        right_outside=(~missed & invented & found.correct).sum(axis=0),
        right_without=(missed & ~invented & found.correct).sum(axis=0),
    )


def upper_bound(correct: Any) -> dict[int, FloatArray]:
    """Accuracy of a perfect vote for every ensemble (section 4): a question counts where any member is right.

    Returns:
        By size k from 1 to M, float64 [M choose k], in the order of ``itertools.combinations(range(M), k)``.

    Raises:
        InputError: more than 20 retrievers.
    """
    right = _indicators("correct", correct)
    width = right.shape[1]
    if width > _MOST_RETRIEVERS:
        raise InputError(f"upper_bound: expected at most {_MOST_RETRIEVERS} retrievers, got {width}")
    # missed[mask] counts the questions whose right retrievers are all within mask.
    masks = right @ (1 << np.arange(width))
    missed = np.bincount(masks, minlength=1 << width)
    for bit in range(width):
        pairs = missed.reshape(-1, 2, 1 << bit)
        pairs[:, 1] += pairs[:, 0]
    everybody = (1 << width) - 1
    return {
        size: np.array(
            [
                1 - missed[everybody ^ sum(1 << m for m in members)] / len(right)
                for members in itertools.combinations(range(width), size)
            ]
        )
        for size in range(1, width + 1)
    }


def _indicators(name: str, values: Any) -> BoolArray:
    found = np.asarray(values)
    if found.ndim != 2 or not found.size:
        raise InputError(f"{name}: expected one row a question and one column a retriever, got {list(found.shape)}")
    if not np.isin(found, (0, 1)).all():
        raise InputError(f"{name}: expected 0 and 1 alone; put a threshold on graded correctness first")
    return found.astype(bool)


def _ratio(wins: BoolArray, misses: BoolArray, both: BoolArray | None = None) -> FloatArray:
    """sum_n wins_i misses_j / sum_n misses_j, over questions where i and j are both in `both`; NaN for 0 / 0."""
    within = np.ones_like(wins) if both is None else both
    upper = (wins & within).astype(np.float64).T @ (misses & within)
    lower = within.astype(np.float64).T @ (misses & within)
    ratio: FloatArray = np.divide(upper, lower, out=np.full_like(upper, np.nan), where=lower > 0)
    return ratio


def _share(indicators: BoolArray) -> FloatArray:
    """Mean over the questions, [Q, M] to [M]; NaN without any."""
    if not len(indicators):
        return np.full(indicators.shape[1], np.nan)
    share: FloatArray = indicators.mean(axis=0)
    return share


def _mean_beside(table: FloatArray, axis: int) -> FloatArray:
    """Mean over an axis without the diagonal and without NaN; NaN where nothing is left."""
    defined = ~np.isnan(table) & ~np.eye(len(table), dtype=bool)
    count = defined.sum(axis=axis)
    total = np.where(defined, table, 0.0).sum(axis=axis)
    mean: FloatArray = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return mean
