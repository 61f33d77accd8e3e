"""Write results to standard output as they come: JSON, JSON lines, or tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Generic, TypeVar

from rich.console import RenderableType

from fastreader.cli.screen import Screen
from fastreader.core.checks import rejecting
from fastreader.data.files import json_text

Result = TypeVar("Result")


def write_json(values: Any, *, lead: str = "", end: str = "\n", indent: int | None = None) -> None:
    """Write JSON to standard output, escaping what its encoding cannot hold.

    Raises:
        InputError: if JSON cannot hold the values.
    """
    named = f"result {values.get('id')!r}" if isinstance(values, dict) else "result"
    with rejecting(f"{named} cannot be written as JSON", TypeError, ValueError):
        text = json_text(values, indent, sys.stdout.encoding or "utf-8")
    sys.stdout.write(lead + text + end)
    sys.stdout.flush()


def write_trec(lines: Iterable[str]) -> None:
    """Write lines of a TREC run to standard output.

    Raises:
        InputError: if the encoding of standard output cannot hold an id, which an escape would change.
    """
    for line in lines:
        encoding = sys.stdout.encoding or "utf-8"
        with rejecting(f"--format trec: {encoding} cannot hold {line.strip()!r}; set PYTHONUTF8=1", UnicodeEncodeError):
            line.encode(encoding)
        sys.stdout.write(line)


class Writer(Generic[Result]):
    """Write one result after another, as a context manager.

    Args:
        format: "json" (one list), "jsonl", or anything else for tables; None writes nothing.
        table: converts a result to something that rich prints.
        values: converts a result to JSON values.
        width: number of columns of a table; None uses the terminal's.
        end: text after a table.
    """

    def __init__(
        self,
        format: str | None,
        table: Callable[[Result], RenderableType],
        values: Callable[[Result], dict[str, Any]],
        width: int | None = None,
        end: str = "\n\n",
    ) -> None:
        self.format, self.table, self.values, self.width, self.end = format, table, values, width, end
        self.first = True

    def write(self, result: Result) -> None:
        """Write one result."""
        if self.format in ("json", "jsonl"):
            values = self.values(result)
            lead = "" if self.format == "jsonl" else ("[\n" if self.first else ",\n")
            write_json(values, lead=lead, end="\n" if self.format == "jsonl" else "")
        elif self.format is not None:
            Screen(width=self.width).print(self.table(result), end=self.end)
        self.first = False

    def __enter__(self) -> Writer[Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Close a list that was started, unless nobody reads standard output any more.
        if self.format == "json" and not isinstance(error, BrokenPipeError):
            if not self.first:
                sys.stdout.write("\n]\n")
            elif kind is None:
                sys.stdout.write("[]\n")
