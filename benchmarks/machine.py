"""What this machine can do at most, and whether it is doing something else."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

import torch


def gemm_rate(dtype: torch.dtype, device: str = "cpu", repeats: int = 5) -> float:
    """Best seen rate of a square matrix product, FLOP/s. 2,048 wide on a CPU, 8,192 elsewhere."""
    size = 2048 if device == "cpu" else 8192
    a, b = (torch.randn(size, size).to(device, dtype) for _ in range(2))
    best = float("inf")
    for _ in range(repeats + 1):
        finish(device)
        started = time.perf_counter()
        a @ b
        finish(device)
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def product_rate(precision: str, device: str = "cpu") -> float:
    """Best seen rate of any product that keeps a precision's promise, FLOP/s: PyTorch's, and on a CPU the kernels'."""
    types = [torch.bfloat16, torch.float32] if precision == "fast" else [torch.float32]
    rates = [gemm_rate(dtype, device) for dtype in types]
    if device == "cpu":
        from fastreader.models.machine.arithmetic import ALLOWED, measure

        rates += [rate * 1e9 for way, rate in measure().items() if way in ALLOWED[precision]]
    return max(rates)


def finish(device: str) -> None:
    """Wait for what a device was given to do."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def describe(device: str = "cpu") -> dict[str, str | int]:
    """Processor or GPU, threads, versions and commit, for a row of results."""
    import transformers

    root = Path(__file__).parent.parent
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    return {
        "processor": torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor(),
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
