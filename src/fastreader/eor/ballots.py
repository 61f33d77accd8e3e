"""Answers made ready to vote on: who is there, who can win, and the similarities of all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.eor.similarity import Similarity, tensor
from fastreader.eor.types import Answers, aligned
from fastreader.errors import InputError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Ballots:
    """Q questions with the answers of the same M retrievers.

    Attributes:
        texts: Q lists of M answers; None where the retriever failed.
        retrievers: M names; None where the answers came without.
        similarity: float64 [Q, S, M, M].
        present: bool [Q, M], whether there is an answer; one that is there votes.
        candidates: bool [Q, M], whether it can win: there, not empty, no refusal.
    """

    texts: list[list[str | None]]
    retrievers: list[str] | None
    similarity: FloatArray
    present: BoolArray
    candidates: BoolArray

    @property
    def width(self) -> int:
        """M, the number of retrievers."""
        return int(self.present.shape[1])


def is_single(answers: Any) -> bool:
    """Whether `answers` are those of one question: an `Answers`, or a list of texts."""
    return isinstance(answers, Answers) or (
        isinstance(answers, Collection)
        and not isinstance(answers, (str, Mapping, Set))
        and len(answers) > 0
        and all(a is None or isinstance(a, str) for a in answers)
    )


def ballots(rows: Sequence[Any], similarities: Sequence[Similarity], accept: Callable[[str | None], bool]) -> Ballots:
    """Check answers and compare them.

    Args:
        rows: Q `Answers`, put in the first one's order of retrievers; or Q lists of M texts and Nones (an object
            array will do).
        similarities: S of them.
        accept: whether a text can win and be supported.

    Raises:
        InputError: no rows, fewer than two retrievers, rows of different retrievers, a similarity that is NaN or
            needs the questions where only texts were given.
    """
    if isinstance(rows, Answers):
        raise InputError("answers: expected those of many questions, got one Answers; put it into a list")
    if isinstance(rows, (str, Mapping, Set)) or not isinstance(rows, Collection):
        raise InputError(f"answers: expected a list with those of each question, got {type(rows).__name__}")
    if len(rows) == 0:
        raise InputError(f"answers: expected those of at least one question, got {rows!r}")
    named = [row for row in rows if isinstance(row, Answers)]
    if named and len(named) < len(rows):
        raise InputError("answers: expected Answers for all questions or for none, got both")
    named = aligned(named)
    rows = named or rows
    retrievers = named[0].retrievers if named else None
    texts = [_row(i, row.texts if isinstance(row, Answers) else row) for i, row in enumerate(rows)]
    width = len(texts[0])
    for i, found in enumerate(texts):
        if len(found) != width:
            raise InputError(f"answers[{i}]: expected {width} answers as in the first row, got {len(found)}")
    if width < 2:
        raise InputError(f"answers: expected at least 2 retrievers to vote, got {width}")
    if not named and (reading := [s.name for s in similarities if s.reads_question]):
        raise InputError(f"similarity {reading[0]}: reads the question; give Answers in place of bare texts")
    present = np.array([[text is not None for text in row] for row in texts])
    candidates = np.array([[accept(text) for text in row] for row in texts]) & present
    questions = [row.question for row in named] if named else [""] * len(texts)
    return Ballots(texts, retrievers, tensor(similarities, questions, texts, candidates), present, candidates)


def _row(index: int, row: Any) -> list[str | None]:
    found = row.tolist() if isinstance(row, np.ndarray) else row
    if not isinstance(found, (list, tuple)):
        raise InputError(f"answers[{index}]: expected a list of texts, got {type(row).__name__}")
    for text in found:
        if text is not None and not isinstance(text, str):
            raise InputError(f"answers[{index}]: expected texts and None, got {text!r}")
    return list(found)
