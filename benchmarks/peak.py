"""How far memory rose while something ran."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path


class Peak:
    """Memory above what was held on entry. A context manager.

    Resident memory, sampled every 5 ms; on a CUDA device what PyTorch had allocated at most.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._device = device if device.startswith("cuda") else None

    def __enter__(self) -> Peak:
        if self._device is not None:
            import torch  # peers' environments have none

            torch.cuda.reset_peak_memory_stats(self._device)
            self.base = self.highest = torch.cuda.memory_allocated(self._device)
            return self
        self.base = self.highest = _resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._device is not None:
            import torch

            self.highest = torch.cuda.max_memory_allocated(self._device)
            return
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
