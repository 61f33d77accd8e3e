"""The prompt texts of SuRe's stages. Fields, order and answer formats follow the paper's appendix A; words are ours.

A prompt is a list of pieces, each tokenised alone, so that prompts which begin with equal pieces share those tokens.
What prompts of a stage share stands first. A piece owns the white space at its edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fastreader.data import Passage
from fastreader.sure.texts import Texts


@dataclass(frozen=True)
class SureTemplate(Texts):
    """The texts of the four stages. Every one can be replaced; in those with fields a brace that is
    just a brace is doubled.

    Prompts, with "|" between pieces:

    - candidates: ``candidates | passages | candidates_question``, or with the passages first
      ``passages | candidates_after | candidates_question``; with examples of answered questions
      ``candidates_shots | passages | shot for each | candidates_shots_question``;
    - summary of candidate k: ``passages | summary | summary_prediction``;
    - validity of candidate k: ``validity_question | validity``, then the label `true` or `false`;
    - ranking of two summaries: ``ranking | ranking_first | ranking_second | ranking_question``, then the label
      `first` or `second`.

    Around each goes the model's chat template where it has one.

    Attributes:
        passage, passage_without_title: fields {title}, {text}, {number} (its place, from 1).
        candidates, candidates_after, candidates_shots: instruction; fields {passages} (how many, in words),
            {number} (of candidates, in words), {form} (such as "(a) xx, (b) yy") and {words}.
        candidates_question: field {question}.
        shot: an answered question; fields {question} and {answer}.
        candidates_shots_question: fields {question}, {number}, {form}.
        summary: fields {question} and {choices} (all candidates with their letters).
        summary_prediction: field {prediction} (the candidate with its letter).
        validity_question: field {question}.
        validity: fields {prediction} (the candidate) and {summary}.
        true, false: the labels.
        ranking: instruction.
        ranking_first, ranking_second: field {summary}.
        ranking_question: field {question}.
        first, second: the labels.
        chat: whether to use the chat template; None: where the model has one.
        system: system message of the chat; None: what the chat template does without one.
        chat_options: further variables for the chat template, such as {"enable_thinking": False}.
    """

    passage: str = "Passage #{number} Title: {title}\nPassage #{number} Text: {text}\n"
    passage_without_title: str = "Passage #{number} Text: {text}\n"
    candidates: str = (
        "You are given {passages} passages and, after them, the question they belong to. Read the passages, then "
        "propose {number} answers to the question that could be correct. Write them in the form {form}, each in no "
        "more than {words} words.\n\n"
    )
    candidates_after: str = (
        "\nThe {passages} passages above belong to the question below. Having read them, propose {number} answers to "
        "the question that could be correct. Write them in the form {form}, each in no more than {words} words.\n"
    )
    candidates_question: str = "\nQuestion: {question}\nAnswer:"
    candidates_shots: str = (
        "You are given {passages} passages, then some questions with their answers, and at the end the question that "
        "the passages belong to. Read all of it, then propose {number} answers to the last question that could be "
        "correct. Write them in the form {form}, each in no more than {words} words.\n\n"
    )
    shot: str = "\nQuestion: {question}\nAnswer: {answer}\n"
    candidates_shots_question: str = "\nQuestion: {question}\nThe {number} answers that could be correct, as {form}:"
    summary: str = (
        "\nWork as a professional writer: write a passage of good quality which supports the prediction made for the "
        "question below, and take what it says from the passages above alone. Begin with the passage itself, without "
        'an opening such as "Response:", and put [DONE] after its end.\n\nQuestion: {question}\nChoices: {choices}\n'
    )
    summary_prediction: str = "Prediction: {prediction}\nPassage:"
    validity_question: str = "Question: {question}\n"
    validity: str = (
        "Prediction: {prediction}\nPassage: {summary}\nIs the prediction correctly supported by the passage? "
        "Choices: [True, False]. Answer:"
    )
    true: str = "True"
    false: str = "False"
    ranking: str = "Question: Find out which of these passages answers the question after them more informatively.\n"
    ranking_first: str = "Passage 1: {summary}\n"
    ranking_second: str = "Passage 2: {summary}\n"
    ranking_question: str = (
        "Target Question: {question}\nYour Task:\nSay which passage, Passage 1 or Passage 2, is the more relevant and "
        "informative one for answering the target question. Choices: [Passage 1, Passage 2].\nAnswer:"
    )
    first: str = "Passage 1"
    second: str = "Passage 2"
    chat: bool | None = None
    system: str | None = None
    chat_options: dict[str, Any] = field(default_factory=dict)

    FIELDS: ClassVar[dict[str, tuple[set[str], set[str]]]] = {
        "passage": ({"text"}, {"title", "number"}),
        "passage_without_title": ({"text"}, {"number"}),
        "candidates": (set(), {"passages", "number", "form", "words"}),
        "candidates_after": (set(), {"passages", "number", "form", "words"}),
        "candidates_question": ({"question"}, set()),
        "candidates_shots": (set(), {"passages", "number", "form", "words"}),
        "shot": ({"question", "answer"}, set()),
        "candidates_shots_question": ({"question"}, {"number", "form"}),
        "summary": ({"question"}, {"choices"}),
        "summary_prediction": ({"prediction"}, set()),
        "validity_question": ({"question"}, set()),
        "validity": ({"prediction", "summary"}, set()),
        "true": (set(), set()),
        "false": (set(), set()),
        "ranking": (set(), set()),
        "ranking_first": ({"summary"}, set()),
        "ranking_second": ({"summary"}, set()),
        "ranking_question": ({"question"}, set()),
        "first": (set(), set()),
        "second": (set(), set()),
    }

    def passages(self, passages: Sequence[Passage]) -> list[str]:
        """One piece for each passage."""
        pieces = []
        for number, passage in enumerate(passages, 1):
            title = passage.title.strip()
            pattern = self.passage if title else self.passage_without_title
            pieces.append(pattern.format(number=number, title=title, text=passage.text.strip()))
        return pieces
