"""Token F1 of answers, after SQuAD's normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastreader.eor.similarity.base import FloatArray, Pair, Similarity
from fastreader.statistics.answers import cached_normalise, f1


class F1(Similarity):
    """Harmonic mean of the shares of words two answers have in common; 0 where one has none."""

    name = "f1"

    def tables(self, questions: Sequence[str], texts: Sequence[Sequence[str]]) -> list[FloatArray]:
        """As `Similarity.tables`, all pairs of a question at once."""
        return [_table([cached_normalise(text).split() for text in group]) for group in texts]

    def _compute(self, pairs: list[Pair]) -> list[float]:
        return [f1(pair.first, [pair.second]) for pair in pairs]


def _table(answers: list[list[str]]) -> FloatArray:
    """F1 = 2 common / (words of one + words of the other), common counted with repetitions."""
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
