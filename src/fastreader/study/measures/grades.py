"""Grades of answers by a reader as the judge: LLM-acc, and CRAG's scores of truthfulness."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.protocol import ReaderProtocol
from fastreader.eor.answer import is_answer
from fastreader.reader.prompts.texts import PromptTexts
from fastreader.statistics.measures.answers import exact_match
from fastreader.study.measures.case import Case, Load, Measure

_SHOWN = "Question: {question}\nRight answers: {answers}\nAnswer to grade: {answer}\n"


@checked
@dataclass(frozen=True)
class JudgeTexts(PromptTexts):
    """Prompts of the judge. Each has the fields {question}, {answers} (the right ones) and {answer}.

    The likeliest of the replies is the grade.

    Attributes:
        accuracy: prompt of LLM-acc, with the replies `yes` and `no`.
        truthfulness: prompt of CRAG's three-valued score, with the replies `accurate`, `missing` and `incorrect`.
        grades: prompt of CRAG's four grades, with the replies `perfect`, `acceptable`, `missing` and `incorrect`.
        separator: between right answers.
    """

    accuracy: str = _SHOWN + "Does the answer say the same as a right answer? Reply Yes or No."
    yes: str = "Yes"
    no: str = "No"
    truthfulness: str = (
        _SHOWN + "Reply Accurate if the answer agrees with a right answer, Missing if it does not commit itself to an "
        "answer, and Incorrect if it says something else."
    )
    accurate: str = "Accurate"
    missing: str = "Missing"
    incorrect: str = "Incorrect"
    grades: str = (
        _SHOWN + "Reply Perfect if the answer is right and says nothing wrong, Acceptable if it is useful and has "
        "small errors that do no harm, Missing if it does not commit itself to an answer, and Incorrect if it is wrong "
        "or does not answer the question."
    )
    perfect: str = "Perfect"
    acceptable: str = "Acceptable"
    separator: str = "; "


def llm_accuracy(name: str, load: Load, texts: JudgeTexts) -> Measure:
    """Return whether a reader finds that an answer says the same as a right one: 1 or 0, the LLM-acc of SuRe.

    The judge is shown the question and all right answers (Kamalloo et al. 2023, arXiv 2305.06984). An empty answer is
    wrong without being shown.

    Args:
        name: of the reader.
        load: returns a reader by name.
        texts: the judge's prompts.
    """
    scores = {texts.yes: 1.0, texts.no: 0.0}
    return _graded(lambda case: None if case.answer.strip() else 0.0, texts.accuracy, scores, name, load, texts)


def crag(name: str, load: Load, texts: JudgeTexts) -> Measure:
    """Return CRAG's three-valued score: 1 for an accurate answer, 0 for a missing one, -1 for an incorrect one.

    As in CRAG's automatic evaluation (Yang et al. 2024, arXiv 2406.04744, section 4), an answer that matches a right
    one exactly is accurate, and a model grades the others. An answer that is empty or refuses (`eor.is_refusal`) is
    missing without being shown. Arguments: see `llm_accuracy`.
    """
    scores = {texts.accurate: 1.0, texts.missing: 0.0, texts.incorrect: -1.0}
    return _graded(_known, texts.truthfulness, scores, name, load, texts)


def crag_grades(name: str, load: Load, texts: JudgeTexts) -> Measure:
    """Return CRAG's score of four grades: perfect 1, acceptable 0.5, missing 0, incorrect -1.

    In CRAG (section 4) people give these grades; here a reader does, and otherwise as `crag`.
    """
    scores = {texts.perfect: 1.0, texts.acceptable: 0.5, texts.missing: 0.0, texts.incorrect: -1.0}
    return _graded(_known, texts.grades, scores, name, load, texts)


def _known(case: Case) -> float | None:
    """Return the score of an answer that needs no judge, or None."""
    if exact_match(case.answer, case.example.answers):
        return 1.0
    return None if is_answer(case.answer) else 0.0


def _graded(
    known: Callable[[Case], float | None],
    prompt: str,
    scores: Mapping[str, float],
    name: str,
    load: Load,
    texts: JudgeTexts,
) -> Measure:
    """Return the score of the judge's reply for each answer that is not known without it."""

    def measure(cases: Sequence[Case]) -> list[float | None]:
        found = [known(case) if case.example.answers else None for case in cases]
        todo = [i for i, case in enumerate(cases) if case.example.answers and found[i] is None]
        shown = [
            prompt.format(
                question=cases[i].example.question.strip(),
                answers=texts.separator.join(cases[i].example.answers),
                answer=cases[i].answer.strip(),
            )
            for i in todo
        ]
        if shown:
            for i, reply in zip(todo, _likeliest(load(name), shown, list(scores)), strict=True):
                found[i] = scores[reply]
        return found

    return measure


def _likeliest(judge: ReaderProtocol, prompts: Sequence[str], replies: Sequence[str]) -> list[str]:
    labels = [judge.continuation(reply) for reply in replies]
    requests = [(context, label) for context in (judge.prompt([text]) for text in prompts) for label in labels]
    logprobs = np.array([result.logprob for result in judge.loglikelihood(requests)]).reshape(-1, len(replies))
    return [replies[best] for best in logprobs.argmax(axis=1).tolist()]
