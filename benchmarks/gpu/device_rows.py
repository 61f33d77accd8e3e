"""Rows of one call on a device: written as they come, so that what dies loses only what it had not written."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
OUT = Path(os.environ.get("OUT", "/tmp"))


class DeviceRows:
    """Rows of `$OUT/rows.jsonl`.

    Args:
        seconds: nothing begins later than these after the start.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> bool:
        """Return whether there is time to begin something."""
        return time.monotonic() < self._end

    def write(self, **row: Any) -> None:
        """Print a row and append it to the file."""
        with (OUT / "rows.jsonl").open("a") as file:
            file.write(json.dumps(row | {"time": time.time()}) + "\n")
        print({name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}, flush=True)

    def attempt(self, what: str, function: Callable[[], T]) -> T | None:
        """Return what a function does, or None without time or after an error, which becomes a row.

        An error of CUDA poisons the process, and ends it.
        """
        if not self.left():
            return None
        try:
            return function()
        except (Exception, SystemExit) as error:  # benchmarks end with SystemExit where a result is wrong
            self.write(suite="failed", case=what, why=f"{type(error).__name__}: {error}"[:400])
            if "CUDA error" in str(error) or "illegal memory" in str(error):
                traceback.print_exc()
                raise SystemExit(1) from error
            return None
