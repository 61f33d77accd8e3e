"""Calls of a reader, added up."""

from __future__ import annotations

from typing import Any

from fastreader.core.tree import TreeStats


class Meter:
    """Adds up calls.

    Attributes:
        calls: made of the reader.
        given, computed: tokens of all that was asked, as if nothing had been in the cache.
        new: tokens written, of all that was asked.
        run: tokens that went through the model now.
        seconds: wall clock of the reader.
    """

    def __init__(self) -> None:
        self.calls = self.given = self.computed = self.new = self.run = 0
        self.seconds = 0.0

    def add(self, asked: TreeStats, run: TreeStats, seconds: float, new: int) -> None:
        """Add one call."""
        self.new += new
        self.calls += run.sequences > 0
        self.given += asked.total_tokens
        self.computed += asked.computed_tokens
        self.run += run.computed_tokens
        self.seconds += seconds

    def clear(self) -> None:
        """Start at nothing again."""
        self.__init__()  # type: ignore[misc]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return dict(vars(self))
