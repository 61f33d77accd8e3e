"""Progress bars on standard error, on a terminal only: bars of this package and of other libraries."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

_noted: ContextVar[Callable[[str], None] | None] = ContextVar("noted", default=None)
_wanted: ContextVar[tuple[bool | None] | None] = ContextVar("wanted", default=None)
STEPPED: ContextVar[Callable[[], None] | None] = ContextVar("stepped", default=None)
"""Called, if it is set, when a part of the work in the `in_steps` block around is done."""
SOON = 1.0
"""Seconds after which a bar shows that is worth showing for long work only."""


def unshown(steps: float) -> None:
    """Advance no bar: what `track` yields if it shows none."""


@contextmanager
def track(
    label: str, total: int | None, unit: str, show: bool | None, *, after: float = 0.0
) -> Iterator[Callable[[float], None]]:
    """Show the progress of a loop, unless it is a part of work whose progress is shown.

    Args:
        label: text before the bar.
        total: number of steps; None if unknown.
        unit: name of a step, in the plural.
        show: whether to show the bar, unless `showing` says; None shows it on a terminal only.
        after: seconds without the bar at the beginning, for None.

    Yields:
        A function to call with the number of steps done since the last call, or the part of one.
    """
    around = _wanted.get()
    wanted = show if around is None else around[0]
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield unshown
        return
    from rich import progress
    from rich.console import Console

    text = progress.TextColumn
    done = [text("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn(), text(unit)]
    times = [progress.TimeElapsedColumn(), text("left"), progress.TimeRemainingColumn()]
    bar = progress.Progress(*done, *times, console=Console(stderr=True), transient=True)
    task = bar.add_task(label, total=total)
    begins = time.monotonic() + (after if wanted is None else 0.0)

    def advance(steps: float) -> None:
        bar.advance(task, steps)
        if not bar.live.is_started and time.monotonic() >= begins:
            bar.start()

    # Not by a token: a generator that holds the block open may end in another context than it began in.
    _wanted.set((False,))
    try:
        advance(0)
        yield advance
    finally:
        _wanted.set(around)
        bar.stop()


@contextmanager
def showing(show: bool | None) -> Iterator[None]:
    """Let `show` decide for all bars of the work within the block, as in `track`, unless a block around it does."""
    around = _wanted.get()
    _wanted.set((show,) if around is None else around)
    try:
        yield
    finally:
        _wanted.set(around)


@contextmanager
def in_steps(advance: Callable[[float], None], count: int) -> Iterator[None]:
    """Advance by 1 over the block: by 1 / `count` at each of the first `count` calls of `STEPPED`, then by the rest."""
    calls = 0

    def stepped() -> None:
        nonlocal calls
        if calls < count:
            calls += 1
            advance(1 / count)

    token = STEPPED.set(stepped)
    try:
        yield
    finally:
        STEPPED.reset(token)
    advance(1 - calls / count)


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
