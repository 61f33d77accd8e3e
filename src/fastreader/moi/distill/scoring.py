"""A student's scores of some orderings of one question: one packed pass with gradients."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fastreader.core.tree import TreeStats
from fastreader.errors import InputError
from fastreader.moi.distill.lessons import Lesson
from fastreader.moi.distill.student import Student
from fastreader.reader.prompts.pieces import encode
from fastreader.reader.prompts.template import Template

Pairs = list[tuple[list[int], list[int]]]


def score_rows(
    student: Student, lesson: Lesson, rows: npt.NDArray[np.int64], observation: str, template: Template
) -> tuple[Tensor, TreeStats]:
    """The student's score of each of a lesson's orderings `rows`: (float64 [len(rows)] nats, tokens computed).

    Raises:
        InputError: the template puts the question before the passages and `observation` is "question".
        ContextOverflowError: an ordering is longer than the student's context.
    """
    pieces = encode(student.encoder, template, lesson.example.question, lesson.example.passages, [])
    if pieces.question_at is not None:
        raise InputError("template: with the question first, passages do not condition it and no ordering is preferred")
    orders = lesson.permutations[rows].tolist()
    sequences: Pairs = [(pieces.head + pieces.body(o) + pieces.question_lead, pieces.question) for o in orders]
    if observation == "joint":
        sequences += [(pieces.head, pieces.body(order)) for order in orders]
    values, stats = student.logliks(sequences)
    return values.reshape(-1, len(orders)).sum(dim=0), stats
