"""Check what every request needs before it is routed: its key, and a body within the limit."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Sequence
from typing import Any

from fastreader.integrations.serve.bodies import error_body

_OPEN = ("/", "/health", "/docs", "/openapi.json")  # without a key


class Entry:
    """Answers 401 to requests without one of the keys, and counts all.

    Args:
        app: what answers requests.
        keys: none lets everyone in.
        add: called with path, status and seconds of each request.
    """

    def __init__(self, app: Any, keys: Sequence[str], add: Callable[[str, int, float], None]) -> None:
        self._app, self._keys, self._add = app, [key.encode() for key in keys], add

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one connection, as ASGI specifies."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def note(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if scope["path"] in _OPEN or self._known(dict(scope["headers"]).get(b"authorization", b"")):
                await self._app(scope, receive, note)
            else:
                message = "expected one of this server's keys as a bearer token"
                body = error_body(message, "authentication_error", code=401)
                await _refuse(note, 401, body, (b"www-authenticate", b"Bearer"))
        finally:
            self._add(self._counted(scope), status, time.perf_counter() - started)

    def _counted(self, scope: Any) -> str:
        """Return the path to count a request by: a path of ours, also if it was rejected before its route was found."""
        if (route := scope.get("route")) is not None:
            return str(route.path)
        return scope["path"] if scope["path"] in {route.path for route in scope["app"].routes} else "other"

    def _known(self, header: bytes) -> bool:
        given = header.removeprefix(b"Bearer ").strip()
        fits = [hmac.compare_digest(given, key) for key in self._keys]  # all of them: equal times
        return not self._keys or any(fits)


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
        await _refuse(send, status, body, (b"connection", b"close"))


async def _refuse(send: Any, status: int, body: bytes, header: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", b"application/json"), header]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
