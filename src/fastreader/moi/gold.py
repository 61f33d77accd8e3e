"""Which passage and which answers are known to be right."""

from __future__ import annotations

from collections.abc import Sequence

from fastreader.data.types import Example, Passage

MARKS = ("is_gold", "has_answer")


def gold_of(passages: Sequence[Passage], marks: Sequence[str] = MARKS) -> int | None:
    """Index of the first passage with the first of `marks` that any has; None where none has one."""
    for mark in marks:
        for p, passage in enumerate(passages):
            if getattr(passage, mark):
                return p
    return None


def right_answers(example: Example) -> list[str]:
    """The answers that are scored and matched: stripped, blank ones left out, each text once."""
    return list(dict.fromkeys(answer.strip() for answer in example.answers if answer.strip()))
