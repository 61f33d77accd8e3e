"""Define Passage and Example, the data that every method reads and returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from fastreader.core.checked import Accepts, checked


@checked
@dataclass(frozen=True)
class Passage:
    """One retrieved passage.

    Attributes:
        text: text of the passage.
        title: title of the passage; empty if it has none.
        id: identifier of the document.
        score: the retriever's score in the retriever's unit, larger is better.
        is_gold: whether the passage is annotated as the right one; None if unknown.
        has_answer: whether the passage contains an answer; None if unknown.
        metadata: all other values from the passage's file, by the file's own keys.

    Raises:
        InputError: if a value has another type.
    """

    text: str
    title: str = ""
    id: str | None = None
    score: float | None = None
    is_gold: bool | None = None
    has_answer: bool | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


def whole_text(passage: Passage) -> str:
    """Return the title, if there is one, and the text, one per line."""
    return f"{passage.title}\n{passage.text}" if passage.title else passage.text


@checked
@dataclass(frozen=True)
class Example:
    """One question with its passages.

    Attributes:
        question: the question.
        passages: the passages, in the retriever's order. Methods also accept texts.
        answers: the right answers; empty if unknown.
        candidates: the answers to score.
        id: identifier of the question.
        metadata: all other values from the question's file, by the file's own keys.

    Raises:
        InputError: if a value has another type.
    """

    question: str
    passages: Annotated[list[Passage], Accepts(list[Passage | str])]
    answers: list[str] = field(default_factory=list)
    candidates: list[str] = field(default_factory=list)
    id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PlacedExample(Example):
    """A question without an id from a file, which messages name by its place: an id that it gets later says nothing.

    Attributes:
        place: file and line or item.
    """

    place: str = ""


def place_of(example: Example) -> str:
    """Return a question's place in its file, or its id, for messages: "" if it has neither."""
    return example.place if isinstance(example, PlacedExample) else "" if example.id is None else f"id {example.id}"
