"""Keeping other libraries' progress bars off a standard error that is no terminal."""

from __future__ import annotations

import contextlib
import sys
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
    """Within the block, progress bars show on a terminal only; all other output passes."""
    if sys.stderr.isatty():
        yield
        return
    with contextlib.redirect_stderr(_WithoutBars(sys.stderr)):
        yield
