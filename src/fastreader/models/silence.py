"""Keeping other libraries' progress bars off a standard error that is no terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO


class _WithoutBars:
    """A stream that passes everything on except the rewrites of a progress bar."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._in_bar = False

    def write(self, text: str) -> int:
        if text.startswith("\r"):
            self._in_bar = True
        elif not (self._in_bar and not text.strip()):
            self._in_bar = False
            self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def no_bars() -> Iterator[None]:
    """Within the block, progress bars show on a terminal only; all other output passes.

    Threads may be inside together: the first one in wraps standard error, the last one out puts it back.
    """
    if sys.stderr.isatty():
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


_lock = threading.Lock()
_inside: list[TextIO] = []  # standard error as the first one found it, once for each that is inside


def _enter() -> None:
    with _lock:
        if not _inside:
            _inside.append(sys.stderr)
            sys.stderr = _WithoutBars(sys.stderr)
        else:
            _inside.append(_inside[0])


def _leave() -> None:
    with _lock:
        before = _inside.pop()
        if not _inside and isinstance(sys.stderr, _WithoutBars):
            sys.stderr = before
