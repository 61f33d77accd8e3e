"""Prompts of one reader, and whether a reply still fits behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastreader.core.protocol import ReaderProtocol, TextOrTokens
from fastreader.data.types import Passage
from fastreader.noise.layouts import Fits
from fastreader.noise.prompt import NoiseTemplate


@dataclass(frozen=True)
class Room:
    """How a reader is asked, and how long a prompt may be.

    Attributes:
        reader: who reads.
        template: the prompt's texts.
        max_new_tokens: of a reply.
        context: tokens of prompt and reply together at most; None: the reader's `max_length`, where it says one.
    """

    reader: ReaderProtocol
    template: NoiseTemplate
    max_new_tokens: int
    context: int | None = None

    @property
    def tokens(self) -> int | None:
        """Tokens of a prompt at most; None where nobody says. The last token of a reply is never read."""
        context = getattr(self.reader, "max_length", None) if self.context is None else self.context
        return None if context is None else context - self.max_new_tokens + 1

    def prompt(self, question: str, passages: Sequence[Passage]) -> TextOrTokens:
        """What the reader is asked."""
        return self.reader.prompt(self.template.pieces(question, passages), **self.template.options())

    def holds(self, prompt: TextOrTokens) -> bool:
        """Whether a reply fits behind the prompt."""
        return self.tokens is None or len(prompt) <= self.tokens

    def fits(self, question: str) -> Fits | None:
        """For `layout`: whether a prompt of these passages leaves room; None where there is no limit."""
        return None if self.tokens is None else lambda passages: self.holds(self.prompt(question, passages))
