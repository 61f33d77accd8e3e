"""Measure the inconsistency of retrievers (sections 2 and 3): answers that others miss, errors, upper bounds.

I_m(n) is 1 if retriever m answers question n correctly. Functions take I as ``correct``, bool or 0/1, [Q, M].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice, expect, require
from fastreader.eor.types import Answers, BoolArray, FloatArray, IntArray, aligned
from fastreader.statistics.measures import answers as answer_measures

Measure = Callable[[str, str, Sequence[str]], float]

MEASURES: dict[str, Callable[[str, Sequence[str]], float]] = {
    "em": answer_measures.exact_match,
    "f1": answer_measures.f1,
    "contained": answer_measures.contained,
    "words": answer_measures.contained_words,
}
_MOST_RETRIEVERS = 20  # 2^20 ensembles


@checked
def correctness(answers: Sequence[Answers], measure: str | Measure = "em") -> FloatArray:
    """Measure every answer against its question's right answers.

    Args:
        answers: Q of them, of the same M retrievers, with right answers; columns follow the order of the first.
        measure: "em", "f1", "contained" or "words" (`fastreader.statistics.measures.answers`); or a function of
            (question, answer, right answers), such as a BEM model or a judge, thresholded if 0 or 1 is needed.

    Returns:
        float64 [Q, M]; 0 if the retriever failed.

    Raises:
        InputError: if `measure` is unknown or does not return a finite number, or a question has no right answers.
    """
    if isinstance(measure, str):
        check_choice("measure", measure, MEASURES)
    rows = []
    given = aligned(answers)
    expect(bool(given), "answers", "at least one question", given)
    for i, row in enumerate(given):
        expect(bool(row.right), f"answers[{i}]", f"right answers to {row.question[:60]!r}", row.right)
        rows.append([0.0 if text is None else _measured(measure, row, text) for text in row.texts])
    return np.array(rows, dtype=np.float64)


def _measured(measure: str | Measure, row: Answers, text: str) -> float:
    if isinstance(measure, str):
        return MEASURES[measure](text, row.right)
    value: Any = measure(row.question, text, row.right)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    require(bool(np.isfinite(number)), f"measure: expected a finite number, got {value!r} for {text!r}")
    return number


def rwr(correct: Any) -> FloatArray:
    """Return the relative win ratio (Eq. 1), float64 [M, M]: RWR(i, j) = sum_n I_i (1 - I_j) / sum_n (1 - I_j).

    It is the share of the questions missed by j that i answers; column j is NaN if j misses none.
    """
    right = indicators("correct", correct)
    return _ratio(right, ~right)


def mrwr(correct: Any) -> FloatArray:
    """Return the mean relative win ratio (Eq. 2), float64 [M]: of RWR(i, j) over j != i without undefined ones."""
    return _mean_of_others(rwr(correct), axis=1)


def mrlr(correct: Any) -> FloatArray:
    """Return the mean relative lose ratio (Eq. 3), float64 [M]: of RWR(j, i) over j != i without undefined ones.

    0 if i answers every question that another retriever answers; NaN if i misses none.
    """
    return _mean_of_others(rwr(correct), axis=0)


def upper_bound(correct: Any) -> dict[int, FloatArray]:
    """Return the accuracy of a perfect vote for every ensemble (section 4), in which any right member is enough.

    Returns:
        By size k from 1 to M, float64 [M choose k], in the order of ``itertools.combinations(range(M), k)``.

    Raises:
        InputError: if there are more than 20 retrievers.
    """
    right = indicators("correct", correct)
    width = right.shape[1]
    expect(width <= _MOST_RETRIEVERS, "correct", f"at most {_MOST_RETRIEVERS} retrievers", width)
    # missed[mask] counts the questions whose right retrievers are all within mask. The first retriever is the highest
    # bit, so that falling masks of one size are in the order of combinations.
    bits = 1 << np.arange(width)[::-1]
    missed = np.bincount(right @ bits, minlength=1 << width)
    for bit in range(width):
        pairs = missed.reshape(-1, 2, 1 << bit)
        pairs[:, 1] += pairs[:, 0]
    ensembles = np.arange((1 << width) - 1, 0, -1)
    sizes = sum((ensembles & bit) > 0 for bit in bits.tolist())
    bounds = 1 - missed[ensembles ^ ((1 << width) - 1)] / len(right)
    return {size: bounds[sizes == size] for size in range(1, width + 1)}


@dataclass(frozen=True, eq=False)
class Errors:
    """Indicators of the four errors (App. B), each bool [Q, M].

    Attributes:
        retriever: E_r, the document holds no right answer.
        hallucination: E_h, the answer is not in the document.
        extraction: E_e, the document holds a right answer, and the answer is from the document but wrong.
        luck: E_luck, neither is in the document, but the answer is right.
        correct: I, whether the answer is right.
        kept: bool [Q], whether all answers to the question are short enough; `filtered` keeps only these questions.
    """

    retriever: BoolArray
    hallucination: BoolArray
    extraction: BoolArray
    luck: BoolArray
    correct: BoolArray
    kept: BoolArray

    def filtered(self) -> Errors:
        """Return the questions of the paper's analysis, which `kept` marks."""
        return Errors(*(part[self.kept] for part in astuple(self)))

    def rates(self) -> dict[str, FloatArray]:
        """Return the share of the questions with each error, float64 [M] by name, NaN without questions."""
        return {name: _share(getattr(self, name)) for name in ("retriever", "hallucination", "extraction", "luck")}


def errors(answers: Sequence[Answers], correct: Any, *, longest: int = 5) -> Errors:
    """Find the error of each answer.

    A text is in a document if its normal form is a substring of the document's; an empty text is in no document.
    The published code asks for whole words instead.

    Args:
        answers: Q of them, with documents and right answers.
        correct: bool or 0/1 [Q, M].
        longest: maximum number of words of an answer, between white space, for its question to be kept.

    Raises:
        InputError: if answers have no documents or no right answers, or `correct` has another shape.
    """
    right = indicators("correct", correct)
    missed, invented = np.zeros(right.shape, dtype=bool), np.zeros(right.shape, dtype=bool)
    kept = np.ones(len(right), dtype=bool)
    rows = aligned(answers)
    shape = [len(rows), len(rows[0].texts) if rows else 0]
    expect(
        list(right.shape) == shape, "correct", f"a row per question and a column per retriever, {shape}", right.shape
    )
    for q, row in enumerate(rows):
        usable = bool(row.documents and row.right)
        expect(usable, f"answers[{q}]", "documents (answer(..., keep_documents=True)) and right answers", row.question)
        gold = [answer_measures.normalise(r) for r in row.right]
        for m, (text, document) in enumerate(zip(row.texts, row.documents, strict=True)):
            body, said = answer_measures.normalise(document.text), answer_measures.normalise(text or "")
            missed[q, m] = not any(g in body for g in gold if g)
            invented[q, m] = not said or said not in body
            kept[q] &= len((text or "").split()) <= longest
    return Errors(
        retriever=missed,
        hallucination=invented,
        extraction=~missed & ~invented & ~right,
        luck=missed & invented & right,
        correct=right,
        kept=kept,
    )


def error_rwr(found: Errors) -> dict[str, FloatArray]:
    """Return the RWR of each error (Eq. 5 and App. B), float64 [M, M] by name; NaN if j never makes it.

    RWR_E(i, j) = sum (1 - E_i) E_j / sum E_j is the share of j's errors that i avoids. "extraction" counts only
    questions on which both documents hold a right answer; "luck" only those on which both have E_r and E_h.
    """
    outside = found.retriever & found.hallucination
    return {
        "retriever": _ratio(~found.retriever, found.retriever),
        "hallucination": _ratio(~found.hallucination, found.hallucination),
        "extraction": _ratio(~found.extraction, found.extraction, ~found.retriever),
        "luck": _ratio(~found.luck, found.luck, outside),
    }


@dataclass(frozen=True, eq=False)
class Decomposition:
    """Failures against the errors behind them (Eq. 4), each float64 or int64 [M].

    Attributes:
        failure: share of questions answered wrong.
        explained: mean of (1 - E_r)(E_h + E_e) + E_r (1 - E_luck), the indicators' form of the equation.
        residual: failure - explained; 0 except for right answers that are not literally in the document.
        right_outside: number of right answers with E_r = 0 and E_h = 1.
        right_without: number of right answers with E_r = 1 and E_h = 0.
    """

    failure: FloatArray
    explained: FloatArray
    residual: FloatArray
    right_outside: IntArray
    right_without: IntArray


def decomposition(found: Errors) -> Decomposition:
    """Return Eq. 4 for each retriever; the residual is exactly -(right_outside + right_without) / Q.

    Without questions, as when `Errors.filtered` keeps none, shares are NaN.
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


def indicators(name: str, values: Any) -> BoolArray:
    """Return 0 and 1 as bool [Q, M].

    Raises:
        InputError: if `values` has another shape or other numbers.
    """
    found = np.asarray(values)
    expect(found.ndim == 2 and found.size > 0, name, "a row per question and a column per retriever", found.shape)
    binary = bool(np.isin(found, (0, 1)).all())
    expect(binary, name, "only 0 and 1; put a threshold on graded correctness first", found)
    return found.astype(bool)


def _ratio(wins: BoolArray, misses: BoolArray, both: BoolArray | None = None) -> FloatArray:
    """Return sum_n wins_i misses_j / sum_n misses_j, over questions with i and j both in `both`, and NaN for 0 / 0."""
    within = np.ones_like(wins) if both is None else both
    upper = (wins & within).astype(np.float64).T @ (misses & within)
    lower = within.astype(np.float64).T @ (misses & within)
    found: FloatArray = np.divide(upper, lower, out=np.full_like(upper, np.nan), where=lower > 0)
    return found


def _share(values: BoolArray) -> FloatArray:
    """Return the mean over the questions, [Q, M] to [M], which is NaN without questions."""
    found: FloatArray = values.mean(axis=0) if len(values) else np.full(values.shape[1], np.nan)
    return found


def _mean_of_others(table: FloatArray, axis: int) -> FloatArray:
    """Return the mean over an axis without the diagonal and NaN, or NaN if nothing is left."""
    defined = ~np.isnan(table) & ~np.eye(len(table), dtype=bool)
    count = defined.sum(axis=axis)
    total = np.where(defined, table, 0.0).sum(axis=axis)
    mean: FloatArray = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return mean
