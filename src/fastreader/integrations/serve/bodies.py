"""A limit on the bytes of a request's body, before anything parses it."""

from __future__ import annotations

import asyncio
from typing import Any

from fastreader.integrations.serve.failures import error_body


class BodyLimit:
    """Read each body up to a limit and pass it on whole, or answer 413 beyond it and 408 if it does not come.

    Args:
        app: what answers requests.
        most: bytes.
        seconds: that a body may take.
    """

    def __init__(self, app: Any, most: int, seconds: float) -> None:
        self._app, self._most, self._seconds = app, most, seconds

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one connection, as ASGI specifies."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._most:
            await self._refuse(send, 413, f"the body has {int(announced):,} bytes, expected at most {self._most:,}")
            return
        try:
            body = await asyncio.wait_for(self._read(receive), self._seconds)
        except TimeoutError:
            await self._refuse(send, 408, f"the body did not come within {self._seconds:g} seconds")
            return
        if body is None:  # the client left
            return
        if len(body) > self._most:
            await self._refuse(send, 413, f"the body has more than {self._most:,} bytes")
            return
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Any:
            return messages.pop() if messages else await receive()

        await self._app(scope, replay, send)

    async def _read(self, receive: Any) -> bytes | None:
        body = bytearray()
        while len(body) <= self._most:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        return bytes(body)

    async def _refuse(self, send: Any, status: int, message: str) -> None:
        body = error_body(message, "invalid_request_error", code=status)
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
