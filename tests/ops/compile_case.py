"""A Triton kernel as its launcher would have it compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
DTYPES = tuple(NAMES)


@dataclass(frozen=True)
class Case:
    """One kernel as the launcher would compile it."""

    name: str
    kernel: Any
    target: int
    dtype: torch.dtype
    matrix: bool  # multiplies matrices
    few_rows: bool  # too few rows for wgmma and tcgen05, which take at least 64
    types: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, int]
    split: bool = False  # multiplies float32 operands as sums of narrower terms

    def __str__(self) -> str:
        return f"sm_{self.target}-{self.name}-{NAMES[self.dtype]}"
