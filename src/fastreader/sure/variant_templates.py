"""The prompt texts of the variants of SuRe and of the methods it is compared with; words are ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fastreader.sure.texts import Texts


@dataclass(frozen=True)
class VariantTemplate(Texts):
    """Texts of the variants; passages and examples are put as `SureTemplate` says, and stand first.

    Attributes:
        task: the base prompt's instruction; field {words}.
        question: field {question}.
        task_choices: instruction of the multiple-choice prompt; field {words}.
        question_choices: fields {question} and {choices}.
        summary: a candidate's summary put behind the passages; fields {candidate}, {summary}, {number}.
        generic_summary: asks for a summary that no candidate conditions; field {question}.
        think: asks for reasoning before the answer; field {question}.
        therefore: what follows the reasoning, for the answer; field {words}.
        verify: the answer; the question is scored behind it; field {answer}.
        select: asks whether one passage helps with the question; fields {question} and {passage}.
        yes, no: its labels.
        infer: asks for an answer, or "unknown" where the passages so far do not have it; fields {words}, {unknown}.
        unknown: that word.
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

    FIELDS: ClassVar[dict[str, tuple[set[str], set[str]]]] = {
        "task": (set(), {"words"}),
        "question": ({"question"}, set()),
        "task_choices": (set(), {"words"}),
        "question_choices": ({"question", "choices"}, set()),
        "summary": ({"summary"}, {"candidate", "number"}),
        "generic_summary": ({"question"}, set()),
        "think": ({"question"}, set()),
        "therefore": (set(), {"words"}),
        "verify": ({"answer"}, set()),
        "select": ({"question", "passage"}, set()),
        "yes": (set(), set()),
        "no": (set(), set()),
        "infer": (set(), {"words", "unknown"}),
        "unknown": (set(), set()),
    }
