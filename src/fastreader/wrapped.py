"""WrappedReader: what a reader that stands before another hands on unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastreader.core.protocol import ReaderProtocol, TextOrTokens


class WrappedReader:
    """The parts of `ReaderProtocol` that only write prompts and tell of the reader.

    Attributes:
        reader: the reader behind.
        name: the reader's name.
    """

    def __init__(self, reader: ReaderProtocol) -> None:
        self.reader = reader
        self.name = reader.name

    @property
    def max_length(self) -> int | None:
        """The reader's longest input, in tokens; None where it says none."""
        limit: int | None = getattr(self.reader, "max_length", None)
        return limit

    def describe(self) -> dict[str, str]:
        """As the reader's."""
        return self.reader.describe()

    def prompt(
        self,
        pieces: Sequence[str],
        *,
        lead: str = "",
        system: str | None = None,
        chat: bool | None = None,
        chat_options: Mapping[str, Any] | None = None,
    ) -> TextOrTokens:
        """As the reader's."""
        return self.reader.prompt(pieces, lead=lead, system=system, chat=chat, chat_options=chat_options)

    def continuation(
        self,
        text: str,
        *,
        end: bool = False,
        system: str | None = None,
        chat: bool | None = None,
        chat_options: Mapping[str, Any] | None = None,
    ) -> TextOrTokens:
        """As the reader's."""
        return self.reader.continuation(text, end=end, system=system, chat=chat, chat_options=chat_options)
