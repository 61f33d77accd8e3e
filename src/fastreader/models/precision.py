"""Which device, which storage type and which arithmetic a reader runs with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from fastreader.errors import InputError

Precision = Literal["fast", "high", "exact"]
PRECISIONS: tuple[Precision, ...] = ("fast", "high", "exact")
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
        dtype: how weights are stored.
        precision: how they are multiplied: "fast", operands in bfloat16; "high", operands as sums of two
            bfloat16 terms; "exact", float32 (float64 where that is how they are stored). Accumulation and
            everything else is float32 in all three.
        reason: one line on why.
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
    if resolved.type == "cuda" and (resolved.index or 0) >= (count := torch.cuda.device_count()):
        raise InputError(
            f"device: expected one of the {count} CUDA devices, cuda:0 to cuda:{count - 1}, got {device!r}"
        )
    return resolved


def resolve(
    device: str | torch.device, dtype: str | torch.dtype, precision: str, checkpoint: torch.dtype
) -> Arithmetic:
    """Choose device, storage and arithmetic.

    Weights are stored as the checkpoint has them unless `dtype` says otherwise. "fast" on a CPU without
    bfloat16 instructions is float32, since half types are slower there as well as less accurate; float64
    weights are always multiplied in float64.

    Args:
        device: "auto", "cpu", "cuda", ... or a torch.device.
        dtype: "auto", "bfloat16", "float16", "float32", "float64" or a torch.dtype.
        precision: "fast", "high" or "exact".
        checkpoint: type of the stored weights.

    Raises:
        InputError: an unknown name, or no such device.
    """
    chosen = next((p for p in PRECISIONS if p == precision), None)
    if chosen is None:
        raise InputError(f"precision: expected one of {', '.join(PRECISIONS)}, got {precision!r}")
    where = resolve_device(device)
    asked = dtype if isinstance(dtype, torch.dtype) else _DTYPES.get(dtype)
    if asked is None and dtype != "auto":
        raise InputError(f"dtype: expected 'auto' or one of {', '.join(_DTYPES)}, got {dtype!r}")
    stored = asked or checkpoint
    if stored == torch.float64:
        return Arithmetic(where, stored, "exact", "weights are float64")
    if chosen != "exact" and where.type == "cpu" and not cpu_multiplies_bf16():
        return Arithmetic(where, stored, "exact", "this CPU has no bfloat16 instructions, so float32 is faster")
    return Arithmetic(where, stored, chosen, "asked for")
