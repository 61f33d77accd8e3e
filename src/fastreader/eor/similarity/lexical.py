"""Similarities of words after SQuAD's normalisation: exact match and token F1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice
from fastreader.eor.similarity.base import Pair, Similarity
from fastreader.eor.types import FloatArray
from fastreader.statistics.measures.answers import cached_normalise, f1


@checked
class Exact(Similarity):
    """1 if one normalised answer contains the other and neither is empty, else 0.

    Attributes:
        match: "contains": either is a substring of the other; "words": either is a run of whole words of the other, so
            that "1" does not match "1901", the "EM" between answers of the paper's code; "equal": they are the same.
    """

    def __init__(self, match: str = "contains") -> None:
        super().__init__()
        check_choice("match", match, ("contains", "words", "equal"))
        self.match = match
        self.name = "exact" if match == "contains" else f"exact:{match}"

    def tables(self, questions: Sequence[str], texts: Sequence[Sequence[str]]) -> list[FloatArray]:
        """Return `Similarity.tables`, caching only the normal forms."""
        out = []
        for group in texts:
            normal = [cached_normalise(text) for text in group]
            table = np.zeros((len(group), len(group)))
            for a, first in enumerate(normal):
                for b in range(a, len(normal)):
                    if self._same(first, normal[b]):
                        table[a, b] = table[b, a] = 1.0
            out.append(table)
        return out

    def _compute(self, pairs: list[Pair]) -> list[float]:
        return [float(self._same(cached_normalise(p.first), cached_normalise(p.second))) for p in pairs]

    def _same(self, a: str, b: str) -> bool:
        if not (a and b):
            return False
        if self.match == "equal":
            return a == b
        if self.match == "words":
            a, b = f" {a} ", f" {b} "
        return a in b or b in a


@checked
class F1(Similarity):
    """Harmonic mean of the shares of words that two answers have in common, 0 without common words."""

    name = "f1"

    def tables(self, questions: Sequence[str], texts: Sequence[Sequence[str]]) -> list[FloatArray]:
        """Return `Similarity.tables`, computing all pairs of a question at once."""
        return [_f1_table([cached_normalise(text).split() for text in group]) for group in texts]

    def _compute(self, pairs: list[Pair]) -> list[float]:
        return [f1(pair.first, [pair.second]) for pair in pairs]


def _f1_table(answers: list[list[str]]) -> FloatArray:
    """Return F1 = 2 common / (words of one + words of the other), counting common words with repetitions."""
    columns: dict[str, int] = {}
    for words in answers:
        for word in words:
            columns.setdefault(word, len(columns))
    counts = np.zeros((len(answers), len(columns)))
    for row, words in enumerate(answers):
        for word in words:
            counts[row, columns[word]] += 1
    common = np.minimum(counts[:, None, :], counts[None, :, :]).sum(axis=-1)
    length = counts.sum(axis=1)
    total = length[:, None] + length[None, :]
    table: FloatArray = np.divide(2 * common, total, out=np.zeros_like(total), where=total > 0)
    return table
