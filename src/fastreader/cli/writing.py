"""Results to standard output: tables, JSON lines, or one JSON list that is closed whatever happens."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from fastreader.cli.options import Format
from fastreader.errors import InputError


class Result(Protocol):
    """What every method's result has."""

    @property
    def id(self) -> str | None:
        """The example's identifier."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        ...


class Writer:
    """Results to standard output as they come; a context manager.

    Args:
        format: None writes nothing.
        show: prints one result for `Format.table`.
    """

    def __init__(self, format: Format | None, show: Callable[[Any], None]) -> None:
        self.format = format
        self.show = show
        self.first = True

    def write(self, result: Result) -> None:
        """Write one result.

        Raises:
            InputError: it cannot be written as JSON.
        """
        if self.format is Format.table:
            self.show(result)
        elif self.format is not None:
            try:
                text = json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False)
            except ValueError as error:
                raise InputError(f"result {result.id!r} cannot be written as JSON: {error}") from error
            lead = "" if self.format is Format.jsonl else ("[\n" if self.first else ",\n")
            sys.stdout.write(lead + text + ("\n" if self.format is Format.jsonl else ""))
            sys.stdout.flush()
        self.first = False

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A list that was begun is closed whatever happened, except that its reader has gone.
        if self.format is Format.json and not isinstance(error, BrokenPipeError):
            if not self.first:
                sys.stdout.write("\n]\n")
            elif kind is None:
                sys.stdout.write("[]\n")
