"""Journal: where replies are kept as they come, so that a program that is run again need not ask again."""

from __future__ import annotations

from typing import Any, Protocol

from fastreader.reader.programs.costs import StageCost
from fastreader.reader.programs.requests import Keep, Request

Replies = list[Any]


class Journal(Protocol):
    """Replies by the index of a program and the number of its request."""

    def recall(self, index: int, step: int, request: Request | Keep) -> tuple[Replies, StageCost] | None:
        """What was recorded for request number `step` of program `index`; None where nothing was."""
        ...

    def record(self, index: int, step: int, request: Request | Keep, replies: Replies, cost: StageCost) -> None:
        """Keep the replies to a request."""
        ...
