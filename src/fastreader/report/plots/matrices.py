"""Who is right where: the ensemble's retrievers, or the study's methods where there is no ensemble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.eor.measures import correctness
from fastreader.eor.types import Answers
from fastreader.report.study_data import Missing, StudyRun
from fastreader.study.methods.eor import answers_of


@dataclass(frozen=True, eq=False)
class Matrix:
    """Correctness of M answers to Q questions.

    Attributes:
        names: M.
        correct: bool [Q, M].
        what: "retrievers" or "methods".
        answers: the ensemble's; none for methods.
    """

    names: list[str]
    correct: npt.NDArray[np.bool_]
    what: str
    answers: list[Answers]


def ensemble(run: StudyRun) -> Matrix:
    """The answers of the first ensemble's retrievers.

    Raises:
        Missing: there is no ensemble, or no question with right answers.
    """
    for condition in run.conditions:
        rows = [row for row in run.of(condition) if "ensemble" in row["trace"]]
        answers = [answers_of(row["trace"], run.questions[row["question_id"]]) for row in rows]
        answers = [a for a in answers if a.right]
        if answers:
            right = correctness(answers, run.study.measure) > 0.5
            return Matrix(answers[0].retrievers, right, "retrievers", answers)
    raise Missing("the run has no ensemble of retrievers (eor) over questions with right answers")


def retrievers_or_methods(run: StudyRun) -> Matrix:
    """The ensemble's retrievers; without one the study's methods, over the questions that all of them answered.

    Raises:
        Missing: neither.
    """
    try:
        return ensemble(run)
    except Missing:
        by_method = {c.label: run.outcomes(c) for c in run.conditions}
        shared: Any = set.intersection(*(set(values) for values in by_method.values())) if by_method else set()
        if len(by_method) < 2 or not shared:
            raise Missing("it takes two methods or retrievers with answers to the same questions") from None
        questions = sorted(shared)
        correct = np.array([[values[q] > 0.5 for values in by_method.values()] for q in questions])
        return Matrix(list(by_method), correct, "methods", [])
