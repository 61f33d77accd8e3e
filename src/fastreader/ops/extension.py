"""The ops of torch.library and the C++ extension behind them: whether it is loaded, what it can use on this machine."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from fastreader.errors import InputError

# Counts the operators' signatures and is part of the extension's name: an extension built from other sources is not
# loaded, since torch would reject its kernels and end the process.
ABI = 15
_NAME = f"fastreader._C{ABI}"
VARIABLE = "FASTREADER_CPU_ISA"

HOW_TO_GET = (
    "install torch and a C++20 compiler (g++ 11 or clang 14, or later), then reinstall fastreader with "
    "pip install --no-build-isolation --force-reinstall --no-deps fastreader"
)


# The namespace ``fastreader``, where every op is defined, with its fake.
LIBRARY = torch.library.Library("fastreader", "FRAGMENT")  # type: ignore[no-untyped-call]
Fake = TypeVar("Fake", bound=Callable[..., Any])


def define(schema: str) -> Callable[[Fake], Fake]:
    """Define the op ``fastreader::<schema>``, whose results the decorated function makes without data (the fake)."""
    LIBRARY.define(schema)  # type: ignore[no-untyped-call]

    def register(fake: Fake) -> Fake:
        torch.library.register_fake(f"fastreader::{schema.partition('(')[0]}", fake, lib=LIBRARY)
        return fake

    return register


@cache
def why_missing() -> str | None:
    """Load the extension, which registers its kernels, and return None or the reason why it is missing."""
    try:
        importlib.import_module(_NAME)
    except ImportError as error:
        return f"the C++ extension is missing or was built from other sources ({error}); to get it, {HOW_TO_GET}"
    return None


def why_not(tensor: Tensor, dtypes: Collection[torch.dtype] = (torch.float32, torch.bfloat16)) -> str | None:
    """Return why the C++ kernels of an op for `dtypes` cannot take this tensor here, or None if they can."""
    missing = why_missing()
    if missing is not None:
        return missing
    if tensor.device.type != "cpu":
        return f"the C++ kernels run on the CPU, got a tensor on {tensor.device}"
    if tensor.dtype not in dtypes:
        return f"the C++ kernels take {' and '.join(str(d).removeprefix('torch.') for d in dtypes)}, got {tensor.dtype}"
    return None


def instruction_set() -> str:
    """Return the instruction set of the CPU kernels: FASTREADER_CPU_ISA, for tests and comparisons, or "auto".

    It is one of portable, avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16, amx, neon and neon_bf16.

    Raises:
        InputError: if this machine has no kernels for the one that the variable names.
    """
    named = os.environ.get(VARIABLE) or "auto"
    if named != "auto" and why_missing() is None and named not in (usable := instruction_sets()):
        raise InputError(f"{VARIABLE}: expected one of this machine's {', '.join(usable)}, got {named!r}")
    return named


def instruction_sets() -> list[str]:
    """Return the instruction sets of this machine that have kernels, from the loaded extension."""
    return list(importlib.import_module(_NAME).isas())


def used_instruction_set() -> str:
    """Return the instruction set that runs: the one that the variable names, or else the best of this machine."""
    named = instruction_set()
    return best_instruction_set() if named == "auto" else named


def best_instruction_set() -> str:
    """Return the best instruction set of this machine that has kernels, from the loaded extension."""
    return str(importlib.import_module(_NAME).best_isa())
