"""Lessons: a question's orderings with the teacher's scores."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice, expect, located, require
from fastreader.data import Example
from fastreader.data.arguments import keyed
from fastreader.data.fingerprints import digest
from fastreader.data.result_log import iter_results
from fastreader.moi.distill.settings import OBSERVATIONS
from fastreader.moi.quantities.observations import FloatArray, IntArray, joint_logprobs
from fastreader.reader.prompts.template import Template
from fastreader.scoring.results import PermutationScores


@checked
@dataclass(frozen=True, eq=False)
class Lesson:
    """One question with the teacher's scores.

    Attributes:
        example: the question and its passages.
        permutations: int64 [K, L], orderings of the passages.
        scores: float64 [K], the teacher's score of each, nats.
    """

    example: Example
    permutations: IntArray
    scores: FloatArray

    def digest(self) -> str:
        """Return a fingerprint of the content, by which a resumed run recognises its lessons."""
        texts = [self.example.question, [[p.title, p.text] for p in self.example.passages]]
        return digest([texts, self.permutations.tolist(), self.scores.tolist()])


@checked
def read_teacher(path: str | os.PathLike[str]) -> tuple[list[PermutationScores], Template]:
    """Read scores and template from a file that `fastreader score --output` (or a `ResultLog`) wrote.

    Returns:
        (the results in file order, the template they were made with: the default one if the file names none)

    Raises:
        InputError: if the file holds no results, a line that is not a result, or results of several templates.
    """
    require(Path(path).is_file(), f"{path}: no such file")
    scores, templates = [], {}
    for number, row in enumerate(iter_results(path), 1):
        with located(f"{path}, result {number}"):
            scores.append(PermutationScores.from_dict(row))
            settings = row.get("settings", {})
            expect(isinstance(settings, dict), "settings", "an object", settings)
            values = settings.get("template") or {}
            expect(isinstance(values, dict), "settings.template", "an object", values)
            templates[json.dumps(values, sort_keys=True)] = Template.from_dict(values)
    expect(bool(scores), str(path), "results of score_permutations", scores)
    expect(len(templates) == 1, str(path), "results made with one template", len(templates))
    return scores, next(iter(templates.values()))


@checked
def make_lessons(
    examples: Iterable[Example], scores: Iterable[PermutationScores], observation: str = "question"
) -> list[Lesson]:
    """Match the teacher's scores with their questions.

    Args:
        examples: the questions with their passages. An example without an id is named by its place, from 0, and one
            whose id is taken by the id with a number, as the command line names them ("a#2").
        scores: the teacher's, matched by id; questions without scores are left out.
        observation: "question" or "joint", see `DistillSettings`.

    Raises:
        InputError: if scores belong to no question or to another one, come from truncated passages, are too few,
            constant or not finite, or lack the passages' log-likelihood that "joint" needs.
    """
    check_choice("observation", observation, OBSERVATIONS)
    by_id = {e.id: e for e in keyed(examples)}
    lessons: dict[str, Lesson] = {}
    for result in scores:
        key, where = str(result.id), f"scores of {result.id!r}"
        expect(key not in lessons, where, "one result for each question", 2)
        example = by_id.get(key)
        expect(example is not None, where, f"an id of the {len(by_id)} examples", result.id)
        assert example is not None
        expect(example.question == result.question, where, f"the question {example.question!r}", result.question)
        whole = not result.truncated_tokens
        expect(whole, where, "whole passages, as a student reads them", result.truncated_tokens)
        last, count = int(result.permutations.max(initial=-1)), len(example.passages)
        expect(last < count, where, f"orderings of passages below {count}", last)
        lessons[key] = Lesson(example, result.permutations, _checked(_observed(result, observation, where), where))
    return list(lessons.values())


def draw(lesson: Lesson, count: int, seed: Sequence[int]) -> IntArray:
    """Draw `count` distinct rows of a lesson, or all if it has no more: int64 [count]."""
    total = len(lesson.scores)
    if count >= total:
        return np.arange(total)
    return np.random.default_rng(seed).choice(total, count, replace=False)


def _observed(result: PermutationScores, observation: str, where: str) -> FloatArray:
    if observation == "question":
        return result.question_logprobs
    with located(where):
        return joint_logprobs(result)


def _checked(values: FloatArray, where: str) -> FloatArray:
    expect(len(values) >= 2, where, "at least 2 orderings", len(values))
    wrong = values[~np.isfinite(values)].tolist()
    expect(not wrong, where, "finite log-likelihoods", wrong)
    expect(bool(np.ptp(values)), where, f"{len(values)} orderings of different scores", float(values[0]))
    return values
