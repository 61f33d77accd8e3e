"""Exact match of answers, after SQuAD's normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastreader.eor.similarity.base import FloatArray, Pair, Similarity
from fastreader.errors import InputError
from fastreader.statistics.answers import cached_normalise


class Exact(Similarity):
    """1 where one normalised answer contains the other, else 0; 0 where one is empty.

    Attributes:
        match: "contains": either is a substring of the other, what the paper's "EM" between answers is; "words":
            a run of whole words of the other, so that "1" is not in "1901"; "equal": they are the same.
    """

    def __init__(self, match: str = "contains") -> None:
        super().__init__()
        if match not in ("contains", "words", "equal"):
            raise InputError(f"Exact: match must be contains, words or equal, got {match!r}")
        self.match = match
        self.name = "exact" if match == "contains" else f"exact:{match}"

    def tables(self, questions: Sequence[str], texts: Sequence[Sequence[str]]) -> list[FloatArray]:
        """As `Similarity.tables`; nothing to cache beyond the normal forms."""
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
