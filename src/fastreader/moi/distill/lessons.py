"""What a student learns from: a question's orderings with the teacher's scores."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastreader.data import Example
from fastreader.data.keyed import keyed
from fastreader.data.result_log import iter_results
from fastreader.errors import InputError
from fastreader.moi.observe import joint_loglik
from fastreader.reader.prompts.template import Template
from fastreader.scoring.results import PermutationScores

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Lesson:
    """One question with the teacher's scores.

    Attributes:
        example: the question and its passages.
        permutations: int64 [K, L], orderings of the passages.
        scores: float64 [K], the teacher's score of each, nats.
    """

    example: Example
    permutations: npt.NDArray[np.int64]
    scores: FloatArray

    def digest(self) -> str:
        """Of everything in it, to tell whether a run goes on with the same lessons."""
        texts = [self.example.question, [[p.title, p.text] for p in self.example.passages]]
        content = json.dumps([texts, self.permutations.tolist(), self.scores.tolist()])
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def read_teacher(path: str | os.PathLike[str]) -> tuple[list[PermutationScores], Template]:
    """Scores and template of a file that `fastreader score --output` (or a `ResultLog`) wrote.

    Returns:
        (the results in file order, the template they were made with: the default one where the file names none)

    Raises:
        InputError: no results, a line that is no result, or results of several templates.
    """
    if not Path(path).is_file():
        raise InputError(f"{path}: no such file")
    scores, templates = [], {}
    for row in iter_results(path):
        scores.append(PermutationScores.from_dict(row))
        values = row.get("settings", {}).get("template") or {}
        templates[json.dumps(values, sort_keys=True)] = values
    if not scores:
        raise InputError(f"{path}: expected results of score_permutations, got none")
    if len(templates) > 1:
        raise InputError(f"{path}: its results were made with {len(templates)} different templates; one is needed")
    return scores, Template(**next(iter(templates.values())))


def make_lessons(
    examples: Iterable[Example], scores: Iterable[PermutationScores], observation: str = "question"
) -> list[Lesson]:
    """Put the teacher's scores beside the questions they belong to.

    Args:
        examples: the questions with their passages; one without an id goes by its place, from 0, and one whose id
            is taken by the id with a number, as the command line names them ("a#2").
        scores: the teacher's, matched by id; questions without scores are left out.
        observation: "question" or "joint", see `DistillSettings`.

    Raises:
        InputError: scores without a question or of another question, of passages that were cut, that are too few,
            constant or not finite, or without the passages' log-likelihood where it is needed.
    """
    by_id = {e.id: e for e in keyed(examples)}
    lessons: dict[str, Lesson] = {}
    for result in scores:
        where = f"scores of {result.id!r}"
        if str(result.id) in lessons:
            raise InputError(f"{where}: expected one result of each question, got another of this id")
        example = by_id.get(str(result.id))
        if example is None:
            raise InputError(f"{where}: expected one of the {len(by_id)} questions given, found none of this id")
        if example.question != result.question:
            raise InputError(f"{where}: are of {result.question!r}, the question of this id is {example.question!r}")
        if result.truncated_tokens:
            raise InputError(f"{where}: the teacher read shortened passages, which a student cannot be given")
        if result.permutations.size and int(result.permutations.max()) >= len(example.passages):
            raise InputError(f"{where}: orderings name a passage that its {len(example.passages)} passages lack")
        values = _checked(_observed(result, observation, where), where)
        lessons[str(result.id)] = Lesson(example, result.permutations, values)
    return list(lessons.values())


def draw(lesson: Lesson, count: int, seed: Sequence[int]) -> npt.NDArray[np.int64]:
    """`count` distinct rows of a lesson (all where it has no more), at random: int64 [count]."""
    total = len(lesson.scores)
    if count >= total:
        return np.arange(total)
    return np.random.default_rng(seed).choice(total, count, replace=False)


def _observed(result: PermutationScores, observation: str, where: str) -> FloatArray:
    if observation == "question":
        return result.question_logprobs
    if observation != "joint":
        raise InputError(f"observation: expected 'question' or 'joint', got {observation!r}")
    try:
        return joint_loglik(result)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _checked(values: FloatArray, where: str) -> FloatArray:
    if len(values) < 2:
        raise InputError(f"{where}: expected at least 2 orderings, got {len(values)}")
    if not np.isfinite(values).all():
        raise InputError(f"{where}: expected finite log-likelihoods, got {values[~np.isfinite(values)][0]}")
    if np.ptp(values) == 0:
        raise InputError(f"{where}: all {len(values)} orderings score {values[0]}, which prefers none of them")
    return values
