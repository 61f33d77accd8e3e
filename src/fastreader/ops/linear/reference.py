"""linear as its definition reads, any dtype up to float64, with the operand rounding of each precision."""

from __future__ import annotations

import torch
from torch import Tensor

_MOST = torch.tensor(8191.0)  # of the integers of "int16"; products of 32 pairs fit in 32 bits


def linear_reference(input: Tensor, weight: Tensor, bias: Tensor | None, precision: str) -> Tensor:
    """Multiply the rounded operands of `linear` and accumulate in float64.

    The precision "int16 inputs" is "int16" for a weight of blocks, whose own integers are multiplied.
    """
    left, right = input.double(), weight.double()
    if precision == "fast":
        left, right = input.bfloat16().double(), weight.bfloat16().double()
    elif precision == "int16":
        left, right = _scaled(left), _scaled(right)
    elif precision == "int16 inputs":
        left = _scaled(left)
    out = left @ right.T
    if bias is not None:
        out = out + bias.double()
    return out if input.dtype == torch.float64 else out.float()


def _scaled(values: Tensor) -> Tensor:
    """Round every 32 values of a row to integers of 14 bits times a scale, both found in float32 as the kernels do."""
    rows, width = values.shape
    padded = torch.nn.functional.pad(values.float(), (0, -width % 32))
    blocks = padded.view(rows, padded.shape[1] // 32, 32)
    largest = blocks.abs().amax(-1, keepdim=True)
    factor = torch.where(largest > 1e-30, _MOST / largest, 0.0)
    integers, unit = (blocks * factor).round(), torch.where(largest > 1e-30, largest / _MOST, 0.0)
    return (integers.double() * unit).view(rows, -1)[:, :width] if rows else values.double()
