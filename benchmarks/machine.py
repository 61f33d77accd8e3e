"""What this machine can do at most, and whether it is doing something else."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

import torch


def gemm_rate(dtype: torch.dtype, size: int = 2048, repeats: int = 5) -> float:
    """Best seen rate of a square matrix product, FLOP/s."""
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    best = float("inf")
    for _ in range(repeats + 1):
        started = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def describe() -> dict[str, str | int]:
    """Processor, threads, versions and commit, for a row of results."""
    import transformers

    root = Path(__file__).parent.parent
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
