"""What a passage is to a question: gold, relevant, distracting or random (Cuconasu et al. 2024, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from fastreader.data.types import Example, Passage
from fastreader.errors import InputError
from fastreader.statistics.answers import contained


class Kind(StrEnum):
    """What a passage is to a question.

    Attributes:
        GOLD: annotated as the right one.
        RELEVANT: holds an answer, without being the gold one.
        DISTRACTING: retrieved for the question, without an answer.
        RANDOM: has nothing to do with the question, and no answer.
    """

    GOLD = "gold"
    RELEVANT = "relevant"
    DISTRACTING = "distracting"
    RANDOM = "random"


def has_answer(passage: Passage, answers: Sequence[str]) -> bool:
    """Whether the normal form of an answer is a substring of that of the passage, its title included.

    The title counts because the reader sees it. A passage's own `has_answer` is not asked: files differ in how they
    matched.
    """
    return bool(contained(f"{passage.title}\n{passage.text}", answers))


def same_text(passage: Passage) -> tuple[str, str]:
    """What two passages have in common when they are the same: title and text, white space apart."""
    return " ".join(passage.title.split()), " ".join(passage.text.split())


def label(example: Example) -> list[Kind]:
    """The kind of each retrieved passage: gold by its flag, else by whether it has an answer.

    Raises:
        InputError: the example has no answers, so that nobody can tell.
    """
    if not example.answers:
        raise InputError(f"label: the example {_name(example)} has no answers, so its passages cannot be told apart")
    return [
        Kind.GOLD if p.is_gold else Kind.RELEVANT if has_answer(p, example.answers) else Kind.DISTRACTING
        for p in example.passages
    ]


def _name(example: Example) -> str:
    return repr(example.id if example.id is not None else example.question)
