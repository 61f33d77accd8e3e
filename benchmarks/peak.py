"""How far memory rose while something ran."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path


class Peak:
    """Resident memory above what was resident on entry, sampled every 5 ms; a context manager."""

    def __enter__(self) -> Peak:
        self.base = self.highest = _resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def bytes(self) -> int:
        return self.highest - self.base

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.highest = max(self.highest, _resident())


def _resident() -> int:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
