"""The prompt of a layout: instruction, documents, question (Cuconasu et al. 2024, figure 1), in our own words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fastreader.core.checked import checked
from fastreader.core.checks import expect
from fastreader.core.protocol import ReaderProtocol, TextOrTokens
from fastreader.data.types import Passage
from fastreader.noise.layouts import Fits
from fastreader.reader.prompts.texts import ChatTexts


@checked
@dataclass(frozen=True)
class NoiseTemplate(ChatTexts):
    """The texts around documents and question. Each can be replaced.

    A prompt consists of the pieces ``instruction, documents``, one ``document`` per passage and ``question``; the reply
    is made to start with `lead`. Without passages it is ``closed_book, question``. The texts with fields are format
    strings, in which a literal brace is doubled.

    Attributes:
        instruction: asks for an answer from the documents, of at most five tokens, or for `no_answer`.
        documents: text before the first document.
        document: fields {title}, {text}, {number} (place of the document, from 1) and {id} (its identifier in the
            corpus, which the paper's prompts show).
        document_without_title: fields {text}, {number}, {id}.
        question: field {question}.
        lead: start of the reply; in a chat it opens the model's turn.
        closed_book: asks for an answer from memory.
        no_answer: reply of a reader that finds no answer, as named in the instruction.
        chat, system, chat_options: see `ChatTexts`.

    Raises:
        InputError: as `PromptTexts`; or if `instruction` does not name `no_answer`.
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

    OPTIONAL: ClassVar = {"document": {"title", "number", "id"}, "document_without_title": {"number", "id"}}

    def __post_init__(self) -> None:
        super().__post_init__()
        named = f"a text with the reply no_answer, {self.no_answer!r}"
        expect(self.no_answer in self.instruction, "NoiseTemplate.instruction", named, self.instruction)

    def pieces(self, question: str, passages: Sequence[Passage]) -> list[str]:
        """Return the prompt's pieces, with the documents at ``[2 : 2 + len(passages)]``."""
        last = self.question.format(question=question.strip())
        if not passages:
            return [self.closed_book, last]
        return [self.instruction, self.documents, *map(self._document, passages, range(1, len(passages) + 1)), last]

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `ReaderProtocol.prompt`."""
        chat_options = self.chat_options or None
        return {"lead": self.lead, "chat": self.chat, "system": self.system, "chat_options": chat_options}

    def refused(self, reply: str) -> bool:
        """Return whether a reply is that no document holds the answer."""
        return bool(self.no_answer) and self.no_answer.lower() in reply.lower()

    def _document(self, passage: Passage, number: int) -> str:
        title, text = passage.title.strip(), passage.text.strip()
        pattern = self.document if title else self.document_without_title
        known = passage.id is not None or "{id}" not in pattern
        expect(known, "NoiseTemplate", "a passage with an id, which the template shows", passage.text)
        return pattern.format(number=number, title=title, text=text, id=passage.id)


@dataclass(frozen=True)
class ContextBudget:
    """The prompts of one reader, and their maximum length.

    Attributes:
        reader: the reader.
        template: the prompt's texts.
        max_new_tokens: maximum length of a reply, in tokens.
        context: maximum length of prompt and reply together, in tokens; None takes the reader's `max_length`, if any.
    """

    reader: ReaderProtocol
    template: NoiseTemplate
    max_new_tokens: int
    context: int | None = None

    @property
    def tokens(self) -> int | None:
        """Maximum length of a prompt, or None if there is no limit. The last token of a reply is never read."""
        context = getattr(self.reader, "max_length", None) if self.context is None else self.context
        return None if context is None else context - self.max_new_tokens + 1

    def prompt(self, question: str, passages: Sequence[Passage]) -> TextOrTokens:
        """Return the reader's prompt."""
        return self.reader.prompt(self.template.pieces(question, passages), **self.template.options())

    def holds(self, prompt: TextOrTokens) -> bool:
        """Return whether a reply fits after the prompt."""
        return self.tokens is None or len(prompt) <= self.tokens

    def fits(self, question: str) -> Fits | None:
        """Return `layout`'s test whether a prompt of some passages leaves room for a reply, or None without a limit."""
        return None if self.tokens is None else lambda passages: self.holds(self.prompt(question, passages))
