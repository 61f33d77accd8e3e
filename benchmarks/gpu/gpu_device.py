"""The CUDA device that runs: its name, versions, and what it does at most."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import torch
import triton
from gpu_rows import Rates


def about() -> dict[str, str]:
    """Return the device's name, the versions and the commit."""
    root = Path(__file__).parents[2]
    commit = ""
    if shutil.which("git") is not None:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
        commit = head.stdout.strip()
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": commit,
    }


def rates() -> Rates:
    """Return the rates of a large bf16 product and of a large copy, whose bytes are read and written."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = triton.testing.do_bench(lambda: a @ b, return_mode="median")
    source, target = (torch.empty(2**30, dtype=torch.uint8, device="cuda") for _ in range(2))
    copy = triton.testing.do_bench(lambda: target.copy_(source), return_mode="median")
    return Rates(2 * 8192**3 / product * 1e3, 2 * 2**30 / copy * 1e3)
