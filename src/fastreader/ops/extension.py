"""The C++ extension: whether it is there, and what it can use on this machine."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from functools import cache

# Of the operators' signatures, and part of the extension's name: one left over from other sources is not loaded, since
# its kernels would be refused at once, and the process with them.
ABI = 8
_NAME = f"fastreader._C{ABI}"

HOW_TO_GET = (
    "install torch and a C++20 compiler (g++ 11 or clang 14, or later), then reinstall fastreader with "
    "pip install --no-build-isolation --force-reinstall --no-deps fastreader"
)


@dataclass(frozen=True)
class Serving:
    """Which implementation of an op `impl="auto"` picks on a device, and why.

    Attributes:
        device: device type and, where it matters, dtypes.
        implementation: name as `impl` takes it.
        why: one sentence.
    """

    device: str
    implementation: str
    why: str


@cache
def why_missing() -> str | None:
    """None when the extension is loaded (which registers its kernels), else the reason it is not."""
    try:
        importlib.import_module(_NAME)
    except ImportError as error:
        return f"the C++ extension is not there, or built from other sources ({error}); to get it, {HOW_TO_GET}"
    return None


def instruction_set() -> str:
    """The instruction set of the CPU kernels, or "auto": FASTREADER_CPU_ISA, for tests and comparisons.

    One of portable, avx2, avx512, avx512_bf16, amx; an unknown one, or one the machine lacks, makes the op raise.
    """
    return os.environ.get("FASTREADER_CPU_ISA", "auto")


def best_instruction_set() -> str:
    """The best instruction set of this machine that there are kernels for; the extension must be there."""
    return str(importlib.import_module(_NAME).best_isa())
