"""Passage and Example: what every part of fastreader reads and returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastreader.core.checks import check_list


@dataclass(frozen=True)
class Passage:
    """One retrieved passage.

    Attributes:
        text: the passage.
        title: its title; empty when it has none.
        id: the document's identifier.
        score: the retriever's score, larger is better; its unit is the retriever's.
        is_gold: whether the passage is annotated as the right one; None when nobody said.
        has_answer: whether the passage contains an answer; None when nobody said.
        metadata: everything else its file said about it, by the file's own keys.
    """

    text: str
    title: str = ""
    id: str | None = None
    score: float | None = None
    is_gold: bool | None = None
    has_answer: bool | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Example:
    """One question with its passages.

    Attributes:
        question: the question.
        passages: the passages, in the retriever's order.
        answers: the right answers; empty when unknown.
        candidates: the answers to score.
        id: the question's identifier.
        metadata: everything else its file said about it, by the file's own keys.

    Raises:
        InputError: one text in place of passages, answers or candidates.
    """

    question: str
    passages: list[Passage]
    answers: list[str] = field(default_factory=list)
    candidates: list[str] = field(default_factory=list)
    id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("passages", "answers", "candidates"):
            check_list(f"Example: {name}", getattr(self, name))
