"""A progress bar on standard error, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
