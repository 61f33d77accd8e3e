"""A progress bar on standard error, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def track(label: str, total: int | None, unit: str, show: bool | None) -> Iterator[Callable[[int], None]]:
    """Show how far a loop is.

    Args:
        label: what is being done.
        total: how many steps there are, None when unknown.
        unit: what a step is, in the plural.
        show: True or False; None: when standard error is a terminal.

    Yields:
        A function to call with the number of steps done since the last call.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda steps: bar.advance(task, steps)
