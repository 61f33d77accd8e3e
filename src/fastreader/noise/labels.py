"""Kinds of passages for a question: gold, relevant, distracting or random (Cuconasu et al. 2024, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from fastreader.core.checked import checked
from fastreader.core.checks import expect
from fastreader.data.types import Example, Passage
from fastreader.statistics.measures.answers import contained


class Kind(StrEnum):
    """Kind of a passage for a question.

    Attributes:
        GOLD: annotated as the right passage.
        RELEVANT: holds an answer, but is not the gold passage.
        DISTRACTING: retrieved for the question, without an answer.
        RANDOM: unrelated to the question, without an answer.
    """

    GOLD = "gold"
    RELEVANT = "relevant"
    DISTRACTING = "distracting"
    RANDOM = "random"


@checked
def has_answer(passage: Passage, answers: Sequence[str]) -> bool:
    """Return whether a normalised answer is a substring of the normalised passage, title included.

    The title counts because the reader sees it. A passage's own `has_answer` is ignored: files differ in their matching
    rules.
    """
    return bool(contained(f"{passage.title}\n{passage.text}", answers))


def same_text(passage: Passage) -> tuple[str, str]:
    """Return title and text with normalised white space, by which equal passages are found."""
    return " ".join(passage.title.split()), " ".join(passage.text.split())


def question_key(example: Example) -> str:
    """Return the key of a question: its id, or its text if it has no id."""
    return example.id if example.id is not None else example.question


@checked
def label(example: Example) -> list[Kind]:
    """Return the kind of each retrieved passage: gold by its flag, else by whether it holds an answer.

    Raises:
        InputError: if the example has no answers, which decide the kind.
    """
    expect(bool(example.answers), f"label: answers of {question_key(example)!r}", "at least one", example.answers)
    return [
        Kind.GOLD if p.is_gold else Kind.RELEVANT if has_answer(p, example.answers) else Kind.DISTRACTING
        for p in example.passages
    ]
