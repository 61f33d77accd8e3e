"""Answers on their way to clients: whole ones, counted until they are sent, and server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

try:
    from starlette.responses import JSONResponse, StreamingResponse
except ImportError as error:
    from fastreader.errors import MissingExtraError

    raise MissingExtraError("fastapi", "serve") from error


class WholeAnswer(JSONResponse):
    """A whole answer.

    Args:
        content: of the body.
        sent: called with the bytes that wait to be sent, and with minus their number afterwards.
        release: called once the client has it, or has left.
    """

    def __init__(self, content: Any, sent: Callable[[int], None], release: Callable[[], None]) -> None:
        super().__init__(content)
        self._sent, self._release = sent, release

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send it."""
        self._sent(len(self.body))
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._sent(-len(self.body))
            self._release()


class Events(StreamingResponse):
    """Server-sent events, each a JSON object, with "[DONE]" after the last.

    Args:
        events: the objects. One with the key "error" is the last one sent.
        release: called once the client has them, or has left.
    """

    def __init__(self, events: AsyncIterator[Any], release: Callable[[], None]) -> None:
        super().__init__(_lines(events), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._release = release

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send them."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


async def _lines(events: AsyncIterator[Any]) -> AsyncIterator[str]:
    async for event in events:
        yield f"data: {json.dumps(event, ensure_ascii=False, allow_nan=False)}\n\n"
        if "error" in event:
            return
    yield "data: [DONE]\n\n"
