"""Prepare answers for a vote: who answered, who can win, and all similarities."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastreader.core.checks import UNORDERED, check_text, expect, require
from fastreader.eor.similarity import Similarity, tensor
from fastreader.eor.types import Answers, BoolArray, FloatArray, aligned


@dataclass(frozen=True, eq=False)
class Ballots:
    """Q questions with the answers of the same M retrievers.

    Attributes:
        texts: Q lists of M answers; None if the retriever failed.
        retrievers: M names; None if the answers came without names.
        similarity: float64 [Q, S, M, M].
        present: bool [Q, M], whether there is an answer; every answer votes.
        candidates: bool [Q, M], whether the answer can win: present, not empty, not a refusal.
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
    """Return whether `answers` belong to one question: an `Answers`, or a list of texts."""
    listed = isinstance(answers, Collection) and not isinstance(answers, UNORDERED)
    listed = listed and getattr(answers, "ndim", 1) > 0 and len(answers) > 0
    return isinstance(answers, Answers) or (listed and all(a is None or isinstance(a, str) for a in answers))


def ballots(rows: Sequence[Any], similarities: Sequence[Similarity], accept: Callable[[str | None], bool]) -> Ballots:
    """Check answers and compare them.

    Args:
        rows: Q `Answers`, reordered to the retrievers of the first; or Q lists (or an object array) of M texts and
            Nones.
        similarities: S of them.
        accept: whether a text can win and be supported.

    Raises:
        InputError: if there are no rows, fewer than two retrievers, or rows of different retrievers; or if a similarity
            is NaN, or needs the questions and only texts were given.
    """
    many = not isinstance(rows, Answers)
    require(many, "answers: expected a list with the answers to each question, got one Answers; put it into a list")
    listed = isinstance(rows, Collection) and not isinstance(rows, UNORDERED)
    listed = listed and getattr(rows, "ndim", 1) > 0  # an array of one number has no length
    expect(listed, "answers", "a list with the answers to each question", rows)
    expect(len(rows) > 0, "answers", "the answers to at least one question", rows)
    named = [row for row in rows if isinstance(row, Answers)]
    expect(len(named) in (0, len(rows)), "answers", "Answers for all questions or for none", rows)
    named = aligned(named)
    texts = [_row(f"answers[{i}]", row.texts if named else row) for i, row in enumerate(named or rows)]
    width = len(texts[0])
    for i, found in enumerate(texts):
        expect(len(found) == width, f"answers[{i}]", f"{width} answers as in the first row", len(found))
    expect(width >= 2, "answers", "at least 2 retrievers to vote", width)
    for each in similarities:
        known = bool(named) or not each.reads_question
        require(known, f"similarity {each.name}: reads the question; pass Answers instead of bare texts")
    present = np.array([[text is not None for text in row] for row in texts])
    candidates = np.array([[accept(text) for text in row] for row in texts]) & present
    questions = [row.question for row in named] if named else [""] * len(texts)
    similarity = tensor(similarities, questions, texts, candidates)
    return Ballots(texts, named[0].retrievers if named else None, similarity, present, candidates)


def _row(name: str, row: Any) -> list[str | None]:
    found = row.tolist() if isinstance(row, np.ndarray) else row
    expect(isinstance(found, (list, tuple)), name, "a list of texts", row)
    for text in found:
        check_text(name, text, empty=True, optional=True)
    return list(found)
