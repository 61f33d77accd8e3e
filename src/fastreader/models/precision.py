"""Which device, which storage type and which arithmetic a reader runs with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from fastreader.errors import InputError

Precision = Literal["fast", "exact"]
PRECISIONS: tuple[Precision, ...] = ("fast", "exact")
_DTYPES = {
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "float32": torch.float32,
    "fp32": torch.float32,
    "float64": torch.float64,
    "fp64": torch.float64,
}


@dataclass(frozen=True)
class Arithmetic:
    """How a reader computes.

    Attributes:
        device: where.
        dtype: how weights are stored and multiplied.
        precision: "exact" when that is float32 or wider, else "fast".
        reason: one line on why, for `fastreader info`.
    """

    device: torch.device
    dtype: torch.dtype
    precision: Precision
    reason: str


@cache
def cpu_flags() -> frozenset[str]:
    """Instruction sets of this CPU as /proc/cpuinfo names them; empty where there is no such file."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return frozenset()
    for line in path.read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()


def cpu_multiplies_bf16() -> bool:
    """Whether this CPU multiplies bfloat16 faster than float32: AVX-512 BF16, AMX, or Arm's BF16."""
    return bool(cpu_flags() & {"avx512_bf16", "amx_bf16", "bf16"})


def resolve_device(device: str | torch.device) -> torch.device:
    """The device named; "auto" is the current CUDA device where there is one, else the CPU.

    Raises:
        InputError: no such device here.
    """
    if device == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"device: expected 'auto', 'cpu' or 'cuda[:n]', got {device!r}") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device: {device!r} was asked for, but torch {torch.__version__} sees no CUDA device")
    return resolved


def resolve(
    device: str | torch.device, dtype: str | torch.dtype, precision: str, checkpoint: torch.dtype
) -> Arithmetic:
    """Choose storage and arithmetic.

    "exact" computes in float32, or in float64 when `dtype` says so. "fast" computes in `dtype`; with
    dtype="auto" that is the checkpoint's own type where the device multiplies it fast, and float32 on a CPU
    without bfloat16 instructions, where half types are slower as well as less accurate.

    Args:
        device: "auto", "cpu", "cuda", ... or a torch.device.
        dtype: "auto", "bfloat16", "float16", "float32", "float64" or a torch.dtype.
        precision: "fast" or "exact".
        checkpoint: type of the stored weights.

    Raises:
        InputError: an unknown name, or a half type together with precision="exact".
    """
    if precision not in PRECISIONS:
        raise InputError(f"precision: expected one of {', '.join(PRECISIONS)}, got {precision!r}")
    where = resolve_device(device)
    asked = dtype if isinstance(dtype, torch.dtype) else _DTYPES.get(dtype)
    if asked is None and dtype != "auto":
        raise InputError(f"dtype: expected 'auto' or one of {', '.join(_DTYPES)}, got {dtype!r}")
    if precision == "exact":
        if asked in (torch.bfloat16, torch.float16):
            raise InputError(f"dtype: precision='exact' needs float32 or float64, got {dtype}")
        return Arithmetic(where, asked or torch.float32, "exact", "asked for")
    if asked is not None:
        chosen, reason = asked, "dtype asked for"
    elif where.type == "cpu" and checkpoint != torch.float32 and not cpu_multiplies_bf16():
        chosen, reason = torch.float32, "this CPU has no bfloat16 instructions, so float32 is faster"
    elif where.type == "cpu" and checkpoint == torch.float16:
        chosen, reason = torch.float32, "float16 is slow on CPUs, and bfloat16 would round the weights"
    else:
        chosen, reason = checkpoint, "the checkpoint's own type"
    return Arithmetic(where, chosen, "exact" if chosen in (torch.float32, torch.float64) else "fast", reason)
