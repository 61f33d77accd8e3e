"""Define the base class of similarities of answers, and the tensor of all similarities that a voter reads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import expect
from fastreader.eor.types import BoolArray, FloatArray
from fastreader.errors import InputError

_ROUNDING = 1e-6  # of encoders in float32


class Pair(NamedTuple):
    """Two answers to one question, which is "" for a similarity that does not read it."""

    question: str
    first: str
    second: str


@checked
class Similarity:
    """A similarity of two answers. Subclasses implement `_compute`, or `tables` if that is cheaper.

    A score depends only on its two answers, never on the batch, and is computed once in the lifetime of the object.
    Copying returns the object itself, so that cloning a voter neither copies models nor discards scores.

    Attributes:
        name: name in votes and saved voters.
        symmetric: whether ``score(a, b)`` equals ``score(b, a)``; if not, a voter reads the mean of both.
        reads_question: whether the score also depends on the question.
    """

    name = ""
    symmetric = True
    reads_question = False

    def __init__(self) -> None:
        self._known: dict[Pair, float] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<similarity {self.name}>"

    def settings(self) -> dict[str, Any]:
        """Return the settings that scores depend on, besides the name, as JSON values for saved voters."""
        return {}

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """Return scores float64 [len(pairs)] in [0, 1], of the first answer against the second.

        Raises:
            InputError: naming the pair, if a score is not a finite number.
        """
        keys = [self._key(pair) for pair in pairs]
        new = list(dict.fromkeys(key for key in keys if key not in self._known))
        if new:
            values = np.asarray(self._compute(new), dtype=np.float64)
            expect(values.shape == (len(new),), f"similarity {self.name}", f"{len(new)} scores", values)
            for key, value in zip(new, values.tolist(), strict=True):
                expect(math.isfinite(value), f"similarity {self.name} of {key[1:]!r}", "a number", value)
                self._known[key] = value
        return np.array([self._known[key] for key in keys], dtype=np.float64)

    def tables(self, questions: Sequence[str], texts: Sequence[Sequence[str]]) -> list[FloatArray]:
        """Return for each question the symmetric similarities float64 [U, U] of its U different answers.

        The similarity of an answer to itself is 1 and is not computed.
        """
        jobs, pairs = [], []
        for i, (question, group) in enumerate(zip(questions, texts, strict=True)):
            for a, b in itertools.combinations(range(len(group)), 2):
                jobs.append((i, a, b))
                pairs.append(Pair(question, group[a], group[b]))
        scores = self.score(pairs)
        if not self.symmetric:
            scores = (scores + self.score([Pair(q, second, first) for q, first, second in pairs])) / 2
        out = [np.eye(len(group)) for group in texts]
        for (i, a, b), score in zip(jobs, scores.tolist(), strict=True):
            out[i][a, b] = out[i][b, a] = score
        return out

    def _compute(self, pairs: list[Pair]) -> Sequence[float] | FloatArray:
        raise NotImplementedError

    def _key(self, pair: Pair) -> Pair:
        question = pair.question if self.reads_question else ""
        if self.symmetric and pair.second < pair.first:
            return Pair(question, pair.second, pair.first)
        return Pair(question, pair.first, pair.second)


@checked
class Function(Similarity):
    """A similarity from any function of two texts.

    Args:
        name: name in votes and saved voters.
        function: from two answers to a number in [0, 1].
        symmetric: whether it is symmetric, so that it is called half as often.
    """

    def __init__(self, name: str, function: Callable[[str, str], float], *, symmetric: bool = False) -> None:
        super().__init__()
        self.name, self.symmetric, self._function = name, symmetric, function

    def _compute(self, pairs: list[Pair]) -> list[float]:
        values = []
        for pair in pairs:
            value: Any = self._function(pair.first, pair.second)
            try:
                values.append(float(value))
            except (TypeError, ValueError):
                raise InputError(f"similarity {self.name}: expected a number, got {value!r} for {pair[1:]!r}") from None
        return values


@checked
def tensor(
    similarities: Sequence[Similarity],
    questions: Sequence[str],
    texts: Sequence[Sequence[str | None]],
    usable: BoolArray,
) -> FloatArray:
    """Return the similarities of all answers to each question.

    Args:
        similarities: S of them.
        questions: Q texts.
        texts: Q lists of M answers.
        usable: bool [Q, M]; the others (failures, empty answers, refusals) are similar to nothing.

    Returns:
        float64 [Q, S, M, M], symmetric in the last two axes, with 0 on their diagonal, which no pooling reads.

    Raises:
        InputError: if a similarity is NaN or outside [0, 1].
    """
    expect(len(texts) == len(questions), "texts", f"the answers to {len(questions)} questions", len(texts))
    count, width = len(texts), max(map(len, texts), default=0)
    whole = usable.shape == (count, width) and all(len(row) == width for row in texts)
    expect(whole, "usable", f"one for each text, {[count, width]}, and as many texts for each question", usable)
    groups: list[list[str]] = []
    places = np.full((count, width), -1)
    for q, row in enumerate(texts):
        seen: dict[str, int] = {}
        for m, text in enumerate(row):
            if text is not None and usable[q, m]:
                places[q, m] = seen.setdefault(text.strip(), len(seen))
        groups.append(list(seen))
    out = np.zeros((count, len(similarities), width, width))
    for s, similarity in enumerate(similarities):
        for q, table in enumerate(similarity.tables(questions, groups)):
            _check(similarity, groups[q], table)
            if len(table):
                out[q, s] = np.clip(table, 0.0, 1.0)[np.ix_(places[q], places[q])]
    together = usable[:, None, :, None] & usable[:, None, None, :] & ~np.eye(width, dtype=bool)
    return np.where(together, out, 0.0)


def _check(similarity: Similarity, texts: list[str], table: FloatArray) -> None:
    for a, b in np.argwhere(~((table >= -_ROUNDING) & (table <= 1 + _ROUNDING))).tolist():
        name = f"similarity {similarity.name} of {texts[a]!r} and {texts[b]!r}"
        expect(False, name, "a number from 0 to 1", float(table[a, b]))
