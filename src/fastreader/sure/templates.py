"""Hold the prompt texts of SuRe and its variants. Fields, order and answer formats follow the paper's appendix A.

The wording is our own. A prompt is a list of pieces, each tokenised by itself, so that prompts with equal first pieces
share those tokens; the pieces that the prompts of a stage share come first. A piece owns the white space at its edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fastreader.core.checked import checked
from fastreader.data import Passage
from fastreader.reader.prompts.texts import ChatTexts, PromptTexts

LETTERS = tuple(f"({letter})" for letter in "abcdefghijklmnopqrstuvwxyz")  # the markers of candidates
PLACEHOLDERS = tuple(2 * letter for letter in "xyzwvutsrqponmlkjihgfedcba")  # of candidates in the answer format
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_WORDS = frozenset({"words"})
_HEADER = _WORDS | {"passages", "number", "form"}


def number_word(number: int) -> str:
    """Return a number in words up to ten, in digits above.

    >>> number_word(2)
    'two'
    """
    return _NUMBERS[number] if 0 <= number < len(_NUMBERS) else str(number)


def lettered(texts: Sequence[str]) -> list[str]:
    """Return each text after its marker.

    >>> ", ".join(lettered(PLACEHOLDERS[:2]))
    '(a) xx, (b) yy'
    """
    return list(map(" ".join, zip(LETTERS, texts, strict=False)))


@checked
@dataclass(frozen=True)
class SureTemplate(ChatTexts):
    """The texts of the four stages, each replaceable.

    Prompts, with "|" between pieces:

    - candidates: ``candidates | passages | candidates_question``, or with the passages first
      ``passages | candidates_after | candidates_question``; with answered questions
      ``candidates_shots | passages | shot for each | candidates_shots_question``;
    - summary of candidate k: ``passages | summary | summary_prediction``;
    - validity of candidate k: ``validity_question | validity``, then the label `true` or `false`;
    - ranking of two summaries: ``ranking | ranking_first | ranking_second | ranking_question``, then the label
      `first` or `second`.

    The model's chat template, if it has one, is applied to each prompt.

    Attributes:
        passage, passage_without_title: fields {title}, {text} and {number} (its place, from 1).
        candidates, candidates_after, candidates_shots: the instruction; fields {passages} (their number in words),
            {number} (of candidates, in words), {form} (for example "(a) xx, (b) yy") and {words}.
        candidates_question: field {question}.
        shot: an answered question; fields {question} and {answer}.
        candidates_shots_question: fields {question}, {number} and {form}.
        summary: fields {question} and {choices} (all candidates after their letters).
        summary_prediction: field {prediction} (the candidate after its letter).
        validity_question: field {question}.
        validity: fields {prediction} (the candidate) and {summary}.
        true, false: the labels of validity.
        ranking: the instruction.
        ranking_first, ranking_second: field {summary}.
        ranking_question: field {question}.
        first, second: the labels of ranking.
        chat, system, chat_options: see `ChatTexts`.
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

    OPTIONAL: ClassVar = {
        "passage": {"title", "number"},
        "passage_without_title": {"number"},
        **dict.fromkeys(("candidates", "candidates_after", "candidates_shots"), _HEADER),
        "candidates_shots_question": {"number", "form"},
        "summary": {"choices"},
    }

    def passages(self, passages: Sequence[Passage]) -> list[str]:
        """Return one piece for each passage."""
        pieces = []
        for number, passage in enumerate(passages, 1):
            title = passage.title.strip()
            pattern = self.passage if title else self.passage_without_title
            pieces.append(pattern.format(number=number, title=title, text=passage.text.strip()))
        return pieces


@checked
@dataclass(frozen=True)
class VariantTemplate(PromptTexts):
    """The texts of the variants and baselines, after passages and shots in the form of `SureTemplate`.

    Attributes:
        task: the base prompt's instruction; field {words}.
        question: field {question}.
        task_choices: instruction of the multiple-choice prompt; field {words}.
        question_choices: fields {question} and {choices}.
        summary: a candidate's summary after the passages; fields {candidate}, {summary} and {number}.
        generic_summary: asks for a summary that depends on no candidate; field {question}.
        think: asks for reasoning before the answer; field {question}.
        therefore: asks for the answer after the reasoning; field {words}.
        verify: the answer, after which the question is scored; field {answer}.
        select: asks whether one passage helps with the question; fields {question} and {passage}.
        yes, no: the labels of `select`.
        infer: asks for an answer, or `unknown` if the passages so far do not have it; fields {words} and {unknown}.
        unknown: the reply that means there is no answer.
    """

    task: str = "\nTask description: answer the following question in no more than {words} words.\n"
    question: str = "\nQuestion: {question}\nAnswer:"
    task_choices: str = (
        "\nTask description: answer the following question with one of its choices, in no more than {words} words.\n"
    )
    question_choices: str = "\nQuestion: {question}\nChoices: {choices}\nAnswer:"
    summary: str = "Summary #{number}: {summary}\n"
    generic_summary: str = (
        "\nWork as a professional writer: write a passage of good quality which supports the answer to the question "
        "below, and take what it says from the passages above alone. Begin with the passage itself, without an opening "
        'such as "Response:", and put [DONE] after its end.\n\nQuestion: {question}\nPassage:'
    )
    think: str = "\nQuestion: {question}\nReason about it one step at a time before you answer.\nReasoning:"
    therefore: str = "\nSo the answer, in no more than {words} words, is:"
    verify: str = "\nThere is a question about the passages above to which the answer is: {answer}\nThat question is:"
    select: str = (
        "{passage}\nQuestion: {question}\nDoes the passage help to answer the question? Choices: [Yes, No]. Answer:"
    )
    yes: str = "Yes"
    no: str = "No"
    infer: str = (
        "\nTask description: answer the following question from the passages above in no more than {words} words. If "
        'they do not have the answer, write "{unknown}".\n'
    )
    unknown: str = "unknown"

    OPTIONAL: ClassVar = {
        **dict.fromkeys(("task", "task_choices", "therefore"), _WORDS),
        "summary": {"candidate", "number"},
        "infer": _WORDS | {"unknown"},
    }
