"""Run many items in one call, and find the items that make it fail by halving."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
Error = TypeVar("Error", bound=BaseException)


def by_halves(
    items: Sequence[Item],
    run: Callable[[Sequence[Item]], Sequence[Outcome]],
    errors: type[Error] | tuple[type[Error], ...],
) -> Iterator[Outcome | Error]:
    """Yield the outcome of each item in order, or the error that the item raises by itself.

    All items run in one call. If it fails, each half runs in a separate call, and so on: one bad item among n costs at
    most ``1 + 2 ceil(log2(n))`` calls, and the others still run in few calls. Halves run as they are consumed.

    Args:
        items: what to run.
        run: returns an outcome for each of the items that it is given.
        errors: exceptions that cause a retry; others are raised.
    """
    try:
        outcomes = run(items)
    except errors as error:
        if not items:
            raise
        if len(items) == 1:
            yield error
            return
    else:
        yield from outcomes
        return
    middle = len(items) // 2
    yield from by_halves(items[:middle], run, errors)
    yield from by_halves(items[middle:], run, errors)
