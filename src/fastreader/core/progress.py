"""Progress bars on standard error, on a terminal only: bars of this package and of other libraries."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

_noted: ContextVar[Callable[[str], None] | None] = ContextVar("noted", default=None)


@contextmanager
def track(label: str, total: int | None, unit: str, show: bool | None) -> Iterator[Callable[[int], None]]:
    """Show the progress of a loop.

    Args:
        label: text before the bar.
        total: number of steps; None if unknown.
        unit: name of a step, in the plural.
        show: whether to show the bar; None shows it on a terminal only.

    Yields:
        A function to call with the number of steps done since the last call.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda steps: None
        return
    from rich import progress
    from rich.console import Console

    text = progress.TextColumn
    done = [text("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn(), text(unit)]
    times = [progress.TimeElapsedColumn(), text("left"), progress.TimeRemainingColumn()]
    with progress.Progress(*done, *times, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda steps: bar.advance(task, steps)


@contextmanager
def busy(label: str) -> Iterator[None]:
    """Show `label` with a spinner on standard error within the block, on a terminal only.

    Another such block within shows no second spinner, and `note` adds what is being done.
    """
    if _noted.get() is not None or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    spinner = Spinner("dots", Text(label))
    # What other threads print stays on its stream, and the spinner where it is while others' bars are silenced.
    console = Console(file=sys.stderr)
    with Live(spinner, console=console, transient=True, redirect_stdout=False, redirect_stderr=False):
        token = _noted.set(lambda what: spinner.update(text=Text(f"{label}: {what}")))
        try:
            yield
        finally:
            _noted.reset(token)


def note(what: str) -> None:
    """Show what is being done after the label of the `busy` block around, if it is shown."""
    if (noted := _noted.get()) is not None:
        noted(what)


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


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that a forked child does not have may hold the other


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
_inside: list[TextIO] = []  # standard error as the first thread found it, once for each thread inside


@contextmanager
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
