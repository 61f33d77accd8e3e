"""The prompt of a layout: instruction, documents, question (Cuconasu et al. 2024, figure 1), in our own words."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fastreader.data.types import Passage
from fastreader.errors import InputError


@dataclass(frozen=True)
class NoiseTemplate:
    """The texts around documents and question. Every field can be replaced.

    A prompt is ``instruction, documents, document for each, question``, a piece each, and the reply is made to start
    with `lead`; without documents it is ``closed_book, question``. Fields in braces are replaced as they stand; other
    braces are just braces.

    Attributes:
        instruction: asks for an answer out of the documents, of five tokens at most, or for `no_answer`.
        documents: before the first document.
        document: field {title}, {text}, {number} (its place, from 1).
        document_without_title: fields {text}, {number}.
        question: field {question}.
        lead: what the reply starts with; in a chat it opens the model's turn.
        closed_book: asks for an answer from memory.
        no_answer: what a reader replies that finds no answer, as the instruction says.
        chat: whether to use the model's chat template; None: where it has one.
        system: system message of the chat; None: what the chat template does without one.
        chat_options: further variables for the chat template.
    """

    instruction: str = (
        "Answer the question with a few words taken from the documents, five tokens at most, or with NO-RES if they do "
        "not hold the answer.\n\n"
    )
    documents: str = "Documents:\n"
    document: str = "Document [{number}] (Title: {title}) {text}\n"
    document_without_title: str = "Document [{number}] {text}\n"
    question: str = "\nQuestion: {question}\n"
    lead: str = "Answer:"
    closed_book: str = "Answer the question from memory with a few words, five tokens at most.\n"
    no_answer: str = "NO-RES"
    chat: bool | None = None
    system: str | None = None
    chat_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, needed in (("document", "{text}"), ("document_without_title", "{text}"), ("question", "{question}")):
            if needed not in getattr(self, name):
                raise InputError(f"NoiseTemplate.{name}: {needed} must appear in it, got {getattr(self, name)!r}")
        if self.no_answer and self.no_answer not in self.instruction:
            raise InputError(
                f"NoiseTemplate.instruction: must name the reply {self.no_answer!r}, got {self.instruction!r}"
            )

    def pieces(self, question: str, passages: Sequence[Passage]) -> list[str]:
        """The prompt's pieces; those of the documents are ``[2 : 2 + len(passages)]``."""
        asked = _put(self.question, question=question.strip())
        if not passages:
            return [self.closed_book, asked]
        documents = [self._document(passage, number) for number, passage in enumerate(passages, 1)]
        return [self.instruction, self.documents, *documents, asked]

    def options(self) -> dict[str, Any]:
        """Keyword arguments of `ReaderProtocol.prompt`."""
        chat_options = self.chat_options or None
        return {"lead": self.lead, "chat": self.chat, "system": self.system, "chat_options": chat_options}

    def refused(self, reply: str) -> bool:
        """Whether a reply says that no document holds the answer."""
        return bool(self.no_answer) and self.no_answer.lower() in reply.lower()

    def to_dict(self) -> dict[str, Any]:
        """All attributes."""
        return dataclasses.asdict(self)

    def _document(self, passage: Passage, number: int) -> str:
        title = passage.title.strip()
        pattern = self.document if title else self.document_without_title
        return _put(pattern, number=str(number), title=title, text=passage.text.strip())


def _put(pattern: str, **fields: str) -> str:
    """Replace the fields in one go, so that braces in what is put in stay as they are."""
    return re.sub(r"\{(\w+)\}", lambda found: fields.get(found[1], found[0]), pattern)
