"""Run PyTorch's CUDA build without a GPU: `pytest -p standin.fakegpu`, or `enable()` before CUDA is used.

The dispatcher, allocators, streams, events and graphs are PyTorch's, on the libcudart of cudart*.cpp. What kernels
would do is done by the CPU's operators and by Triton's interpreter on the same memory, when a stream's turn comes,
which is when somebody waits for it, or when a graph replays.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import torch

from standin.device import errors, flush
from standin.emulation import Emulation

_enabled = False


def enable() -> None:
    """Give CUDA tensors the values of a device from here on, in all threads."""
    global _enabled
    if _enabled:
        return
    _enabled = True
    torch.backends.cuda.enable_cudnn_sdp(False)  # its front end asks cuDNN for plans
    if os.environ.get("TRITON_INTERPRET") == "1":
        from standin import interpreter

        interpreter.patch()
    run = threading.Thread.run

    def run_emulated(self: threading.Thread) -> None:
        with Emulation():
            run(self)

    threading.Thread.run = run_emulated  # type: ignore[method-assign]
    Emulation().__enter__()


def pytest_configure(config: Any) -> None:
    enable()


def pytest_runtest_teardown(item: Any) -> None:
    """Report what failed in a queue, after the test that queued it."""
    flush()
    if errors:
        found = "\n".join(errors)
        errors.clear()
        raise RuntimeError(f"work on the pretended device failed:\n{found}")
