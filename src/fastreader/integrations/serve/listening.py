"""How connections are treated before there is a request: bounded in number and in time."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fastreader.integrations.serve.settings import ServerSettings

_IDLE = 256  # connections besides the ones with requests


def listening(settings: ServerSettings) -> dict[str, Any]:
    """Return the arguments of `uvicorn.run` and `uvicorn.Config` for a server of these settings."""

    class Protocol(_Bounded):
        seconds = settings.timeout

    return {"http": Protocol, "ws": "none", "server_header": False, "limit_concurrency": settings.max_requests + _IDLE}


class _Bounded(H11Protocol):
    """HTTP/1.1 that closes a connection whose request does not come, or whose client takes nothing after the end."""

    seconds: float
    _timer: asyncio.TimerHandle | None = None  # for a request to come
    _stuck: asyncio.TimerHandle | None = None  # for what was sent to be taken

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(2 * self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _watch(self) -> None:
        """Start the clock for a request's first line and headers, or stop it if they are there."""
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
