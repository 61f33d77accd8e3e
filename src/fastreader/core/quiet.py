"""Suppress other libraries' progress bars when standard error is not a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO


class _WithoutBars:
    """A stream that passes on everything except the rewrites of a progress bar."""

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


_lock = threading.Lock()
_inside: list[TextIO] = []  # standard error as the first thread found it, once for each thread inside


@contextlib.contextmanager
def silence_progress_bars() -> Iterator[None]:
    """Show progress bars on a terminal only within the block, and pass all other output on.

    Threads may be inside together: the first one wraps standard error, the last one restores it.
    """
    if sys.stderr.isatty():
        yield
        return
    with _lock:
        _inside.append(_inside[0] if _inside else sys.stderr)
        if len(_inside) == 1:
            sys.stderr = _WithoutBars(sys.stderr)
    try:
        yield
    finally:
        with _lock:
            before = _inside.pop()
            if not _inside and isinstance(sys.stderr, _WithoutBars):
                sys.stderr = before
