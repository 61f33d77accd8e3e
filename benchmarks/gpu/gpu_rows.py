"""Rows of measurements on a device: what was timed, and the least time it could take. Written one by one."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Rates:
    """What a device does at most, measured in the same run: operations and bytes a second."""

    flops: float
    bandwidth: float

    def floor(self, flops: float, bytes: float) -> float:
        """Return the least milliseconds for a number of operations and bytes."""
        return 1e3 * max(flops / self.flops, bytes / self.bandwidth)


@dataclass(frozen=True)
class Row:
    """One way to one result.

    Attributes:
        suite: "kernels", "passes" or "steps".
        model: a name of `gpu_workloads.SHAPES`.
        case: what was computed; ways of the same case give the same numbers.
        way: how.
        milliseconds: median, with cold caches for kernels.
        low, high: 10th and 90th percentile.
        floor: the least milliseconds, by operations and bytes.
        warm: median with warm caches, milliseconds; None if it was not measured.
    """

    suite: str
    model: str
    case: str
    way: str
    milliseconds: float
    low: float
    high: float
    floor: float
    warm: float | None = None


class Rows:
    """Measurements of one run, appended to a file as they come, so that a stopped run keeps what it had.

    Args:
        path: the file, or None to print only.
        seconds: no measurement begins later than this after the start.
        about: device, versions and rates, for every row.
    """

    def __init__(self, path: Path | None, seconds: float, about: dict[str, Any]) -> None:
        self._path, self._about = path, about
        self._end = time.monotonic() + seconds

    def left(self, seconds: float = 0.0) -> bool:
        """Return whether there is time for a measurement that takes these seconds."""
        return time.monotonic() + seconds < self._end

    def add(self, row: Row) -> None:
        """Print a row, and append it to the file at once."""
        spread = f"({row.low:.3f} .. {row.high:.3f})"
        times = f"{row.milliseconds / row.floor:6.2f} x floor" if row.floor else " " * 14
        print(f"{row.milliseconds:10.3f} ms {spread:>22} {times}  {row.model}, {row.case}: {row.way}", flush=True)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(self._about | {"time": time.time()} | asdict(row)) + "\n")
