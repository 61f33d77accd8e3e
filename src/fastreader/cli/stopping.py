"""Ctrl-C and SIGTERM end a command by an exception, so that files are closed and a sentence says what they hold."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn


class Stopped(SystemExit):
    """Exit because of a signal, with 128 plus its number as exit code."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name

    def sentence(self) -> str:
        """Return what is in the files that were being written (notes of `ResultLog`), and how to resume."""
        notes: list[str] = getattr(self, "__notes__", [])
        kept = "; ".join(notes) or "every line that is in an output file is whole; resume to add the others"
        return f"stopped by {self.name}; {kept} (the same command with --resume)"


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise Stopped on SIGINT and SIGTERM within the block, and end the process on a second signal."""
    before: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        for one in before:
            signal.signal(one, signal.SIG_DFL)
        raise Stopped(number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and a shell's background jobs set it
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
