"""How inconsistent retrievers are (sections 2 and 3): who answers what the others miss, and which errors they make.

I_m(n) is 1 where retriever m answers question n correctly. All take I as ``correct``, bool or 0/1, [Q, M].
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastreader.eor.error_analysis import Decomposition, Errors, decomposition, error_rwr, errors
from fastreader.eor.ratios import FloatArray, indicators, mean_beside, ratio
from fastreader.eor.types import Answers, aligned
from fastreader.errors import InputError
from fastreader.statistics import answers as answer_measures

__all__ = [
    "MEASURES", "Decomposition", "Errors", "correctness", "decomposition", "error_rwr", "errors", "mrlr", "mrwr", "rwr",
    "upper_bound",
]  # fmt: skip

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
        measure: "em", "f1" or "contained" (`fastreader.statistics.answers`); or a function of (question, answer, right
            answers), such as a BEM model or a judge, thresholded where a yes or no is wanted.

    Returns:
        float64 [Q, M]; 0 where the retriever failed.

    Raises:
        InputError: another name, a question without right answers, or a measure that gives no finite number.
    """
    if isinstance(measure, str) and measure not in MEASURES:
        raise InputError(f"measure: expected one of {', '.join(MEASURES)} or a function, got {measure!r}")
    rows = []
    given = aligned(answers)
    for i, row in enumerate(given):
        if not row.right:
            raise InputError(f"answers[{i}]: expected right answers, got none for {row.question[:60]!r}")
        rows.append([0.0 if text is None else _measured(measure, row, text) for text in row.texts])
    if not rows:
        raise InputError("answers: expected at least one question, got none")
    found = np.array(rows, dtype=np.float64)
    if not np.isfinite(found).all():
        q, m = np.argwhere(~np.isfinite(found))[0].tolist()
        raise InputError(f"measure: expected a finite number, got {found[q, m]} for {given[q].texts[m]!r}")
    return found


def _measured(measure: str | Measure, row: Answers, text: str) -> float:
    if isinstance(measure, str):
        return MEASURES[measure](text, row.right)
    value = measure(row.question, text, row.right)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"measure: expected a finite number, got {value!r} for {text!r}") from None


def rwr(correct: Any) -> FloatArray:
    """Relative win ratio (Eq. 1), float64 [M, M]: RWR(i, j) = sum_n I_i (1 - I_j) / sum_n (1 - I_j).

    The share of the questions that j misses and i answers. NaN in column j where j misses none.
    """
    right = indicators("correct", correct)
    return ratio(right, ~right)


def mrwr(correct: Any) -> FloatArray:
    """Mean relative win ratio (Eq. 2), float64 [M]: of RWR(i, j) over j != i, undefined ones left out."""
    return mean_beside(rwr(correct), axis=1)


def mrlr(correct: Any) -> FloatArray:
    """Mean relative lose ratio (Eq. 3), float64 [M]: of RWR(j, i) over j != i, undefined ones left out.

    0 where i answers all that any other does; NaN where i misses nothing.
    """
    return mean_beside(rwr(correct), axis=0)


def upper_bound(correct: Any) -> dict[int, FloatArray]:
    """Accuracy of a perfect vote for every ensemble (section 4): a question counts where any member is right.

    Returns:
        By size k from 1 to M, float64 [M choose k], in the order of ``itertools.combinations(range(M), k)``.

    Raises:
        InputError: more than 20 retrievers.
    """
    right = indicators("correct", correct)
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
