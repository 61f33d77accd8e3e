"""linear as its definition reads, any dtype up to float64, with the operand rounding of each precision."""

from __future__ import annotations

import torch
from torch import Tensor


def linear_reference(input: Tensor, weight: Tensor, bias: Tensor | None, precision: str) -> Tensor:
    """Multiply the rounded operands and accumulate in float64; arguments are those of `linear`."""
    left, right = input.double(), weight.double()
    if precision == "fast":
        left, right = input.bfloat16().double(), weight.bfloat16().double()
    out = left @ right.T
    if bias is not None:
        out = out + bias.double()
    return out if input.dtype == torch.float64 else out.float()
