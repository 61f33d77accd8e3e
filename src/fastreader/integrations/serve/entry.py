"""Entry: checks the key of every request, and counts its status and time."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Sequence
from typing import Any

from fastreader.integrations.serve.failures import error_body

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
                await self._refuse(note)
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

    async def _refuse(self, send: Any) -> None:
        body = error_body("expected one of this server's keys as a bearer token", "authentication_error", code=401)
        headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": body})
