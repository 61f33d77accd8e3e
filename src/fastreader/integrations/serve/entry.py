"""Check what every request needs before it is routed: its host, its key, and a body within the limit."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from fastreader.integrations.serve.bodies import error_body

log = logging.getLogger(__name__)
_OPEN = ("/", "/health", "/openapi.json")  # without a key
KEY = "fastreader.key"  # of a scope: the number of the key that its request came with
_PIECE = 1 << 16  # bytes of a response sent at once
# Lists, objects and fields of a JSON body: each takes up to 30 times its characters in memory.
_PARTS = 60_000
_VALUES = 600_000  # of lists: a token id takes 36 bytes
_PART = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{:]', re.DOTALL)
_VALUE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|,', re.DOTALL)
_DROPPED = 16  # times its limit that a body is read and dropped
_SMALL = 1 << 16  # bytes that a body may hold however many others there are


class Entry:
    """Answers 401 to requests without one of the keys, 400 to requests for other hosts, and counts all.

    The scope of a request that is let in for its key has the key's number, 0 if the server has no keys.

    Args:
        app: what answers requests.
        keys: none lets everyone in.
        add: called with path, status and seconds of each request.
        hosts: names by which clients without a key may call this machine's own addresses.
        seconds: that a client may take to receive an answer; then the connection is closed.
    """

    def __init__(
        self,
        app: Any,
        keys: Sequence[str],
        add: Callable[[str, int, float], None],
        hosts: Sequence[str] = (),
        seconds: float = 120.0,
    ) -> None:
        self._app, self._keys, self._add = app, [key.encode() for key in keys], add
        self._hosts, self._seconds = {"localhost", *(host.lower() for host in hosts)}, seconds

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one connection, as ASGI specifies."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, until = time.perf_counter(), 500, 0.0
        headless = scope["method"] == "HEAD"
        if headless:
            scope = {**scope, "method": "GET"}

        async def note(message: Any) -> None:
            nonlocal status, until
            if message["type"] == "http.response.start":
                status, until = message["status"], asyncio.get_running_loop().time() + self._seconds
            async with asyncio.timeout_at(until):
                if message["type"] != "http.response.body":
                    await send(message)
                    return
                body = b"" if headless else message.get("body", b"")
                # In pieces, each sent once the client has taken those before it.
                for first in range(0, len(body) or 1, _PIECE):
                    more = message.get("more_body", False) or first + _PIECE < len(body)
                    await send({**message, "body": body[first : first + _PIECE], "more_body": more})

        try:
            refused = self._refusal(scope)
            if refused is None:
                await self._app(scope, receive, note)
            else:
                await _refuse(note, *refused)
        except TimeoutError:
            if not until:
                raise
            log.info("%s: the client did not take its answer in time", scope["path"])
        finally:
            self._add(self._counted(scope), status, time.perf_counter() - started)

    def _refusal(self, scope: Any) -> tuple[int, bytes, tuple[bytes, bytes]] | None:
        given: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            given.setdefault(name, []).append(value)
        if not self._keys and _is_own(scope.get("server")) and not self._named(given.get(b"host", [])):
            message = "the Host header names another machine; --allow-host adds a name"
            return 400, error_body(message, "invalid_request_error", code=400), (b"connection", b"close")
        headers = given.get(b"authorization", [])
        if scope["path"] in _OPEN:
            return None
        scope[KEY] = self._key(headers[0] if headers else b"") if len(headers) < 2 else None
        if scope[KEY] is not None:
            return None
        message = "expected one of this server's keys as a bearer token, in one Authorization header"
        return 401, error_body(message, "authentication_error", code=401), (b"www-authenticate", b"Bearer")

    def _named(self, hosts: Sequence[bytes]) -> bool:
        """Return whether the one Host header names this machine, or is missing."""
        if not hosts:  # HTTP/1.0, which no browser sends
            return True
        name = hosts[0].decode("latin-1").lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.rpartition(":")[0] or name
        ours = name in self._hosts or name.endswith(".localhost") or _is_own((name, 0))
        return len(hosts) == 1 and (ours or not {".", ":"} & set(name))  # no stranger's name is without a dot

    def _counted(self, scope: Any) -> str:
        """Return the path to count a request by: a path of ours, also if it was rejected before its route was found."""
        if (route := scope.get("route")) is not None:
            return str(route.path)
        known = {getattr(route, "path", "") for route in scope["app"].routes} if "app" in scope else ()
        return scope["path"] if scope["path"] in known else "other"

    def _key(self, header: bytes) -> int | None:
        """Return the number of the key in a header, 0 if the server has no keys, or None if the header has another."""
        scheme, _, given = header.partition(b" ")
        fits = [hmac.compare_digest(given.strip(), key) for key in self._keys]  # all of them: equal times
        if not self._keys:
            return 0
        return fits.index(True) if scheme.lower() == b"bearer" and any(fits) else None


def _is_own(address: Sequence[Any] | None) -> bool:
    """Return whether an address is one of the machine's own, such as 127.0.0.1."""
    try:
        return bool(address) and ipaddress.ip_address(str(address[0])).is_loopback  # type: ignore[index]
    except ValueError:
        return False


class BodyLimit:
    """Read each body up to a limit and pass it on whole, or answer 413 beyond it and 408 if it does not come.

    A JSON body with more lists, objects, fields and values than any request needs is answered with 413 before it is
    parsed.

    Args:
        app: what answers requests.
        most: bytes.
        seconds: that a body may take.
        together: bytes of all bodies that are being read; beyond them the largest ones are answered with 429.
    """

    def __init__(self, app: Any, most: int, seconds: float, together: int) -> None:
        self._app, self._most, self._seconds = app, most, seconds
        self._together, self._held = together, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one connection, as ASGI specifies."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        header = dict(scope["headers"]).get(b"content-length", b"0")
        announced = int(header) if header.isdigit() else 0
        if announced > _DROPPED * self._most:
            await self._refuse(send, 413, f"the body has {announced:,} bytes, expected at most {self._most:,}")
            return
        body = bytearray()
        try:
            status = await asyncio.wait_for(self._read(receive, body, announced), self._seconds)
        except TimeoutError:
            await self._refuse(send, 408, f"the body did not come within {self._seconds:g} seconds")
            return
        finally:
            self._held -= len(body)
        if status == 413:
            has = f"{announced:,} bytes, expected at most" if announced else "more than"
            await self._refuse(send, 413, f"the body has {has} {self._most:,}" + ("" if announced else " bytes"))
        elif status == 429:
            await self._refuse(send, 429, "the bodies of other requests fill the server's memory; try again soon")
        elif status == 200 and json.detect_encoding(body) not in ("utf-8", "utf-8-sig"):
            await self._refuse(send, 400, "the body is not JSON: expected UTF-8")
        elif status == 200 and _has_more(body, _PARTS, b"[{:", _PART):
            await self._refuse(send, 413, f"the body has more than {_PARTS:,} lists, objects and fields")
        elif status == 200 and _has_more(body, _VALUES, b",", _VALUE):
            await self._refuse(send, 413, f"the body has more than {_VALUES:,} values in its lists")
        elif status == 200:
            messages = [{"type": "http.request", "body": bytes(body), "more_body": False}]
            del body

            async def replay() -> Any:
                return messages.pop() if messages else await receive()

            await self._app(scope, replay, send)

    async def _read(self, receive: Any, body: bytearray, announced: int) -> int:
        """Read a body into `body`, and return the status to answer with, 0 if the client left.

        A body that has no room is read to its end and dropped, so that its client, which still sends, sees the answer.
        """
        status, size = 413 if announced > self._most else 200, 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return 0
            part = message.get("body", b"")
            size += len(part)
            if size > _DROPPED * self._most:
                return 413
            if status == 200 and size > self._most:
                status = 413
            if status == 200 and size > _SMALL and self._held + len(part) > self._together:
                status = 429
            if status == 200:
                body += part
                self._held += len(part)
            else:
                self._held -= len(body)
                body.clear()
            if not message.get("more_body"):
                return status

    async def _refuse(self, send: Any, status: int, message: str) -> None:
        kind = "overloaded_error" if status == 429 else "invalid_request_error"
        await _refuse(send, status, error_body(message, kind, code=status), (b"connection", b"close"))


def _has_more(body: bytearray, most: int, marks: bytes, pattern: re.Pattern[bytes]) -> bool:
    """Return whether more than `most` marks are outside of a body's texts, which `pattern` finds as well as marks."""
    if sum(body.count(mark) for mark in marks) <= most:
        return False
    parts = (found for found in pattern.finditer(body) if body[found.start()] != ord('"'))
    return next(islice(parts, most, None), None) is not None


async def _refuse(send: Any, status: int, body: bytes, header: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", b"application/json"), header]
    if status == 429:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
