"""linear as its definition reads, any dtype up to float64, with the operand rounding of each precision."""

from __future__ import annotations

import torch
from torch import Tensor

_MOST = torch.tensor(8191.0)  # of the integers of "int16"; products of 32 pairs fit in 32 bits
_COARSE = 96


def linear_reference(input: Tensor, weight: Tensor, bias: Tensor | None, precision: str) -> Tensor:
    """Multiply the rounded operands of `linear` and accumulate in float64.

    The precisions "int16 inputs" and "bf16 inputs" are those for a weight of blocks whose own integers are multiplied.
    """
    left, right = input.double(), weight.double()
    if precision == "bf16":
        left, right = input.bfloat16().double(), weight.bfloat16().double()
    elif precision == "int16":
        powers = _column_powers(right)
        left, right = _scaled(left / powers, rest=True), _scaled(right * powers)
    elif precision == "int16 inputs":
        left = _scaled(left, rest=True)
    elif precision == "bf16 inputs":
        left = input.bfloat16().double()
    out = left @ right.T
    if bias is not None:
        out = out + bias.double()
    return out if input.dtype == torch.float64 else out.float()


def _scaled(values: Tensor, rest: bool = False) -> Tensor:
    """Round every 32 values of a row to integers of 14 bits times a scale, both found in float32 as the kernels do.

    With `rest`, blocks of which half is more than `_COARSE` times smaller than the largest keep a second such term.
    """
    rows, width = values.shape
    padded = torch.nn.functional.pad(values.float(), (0, -width % 32))
    blocks = padded.view(rows, padded.shape[1] // 32, 32)
    rounded = _integers(blocks)
    if rest:
        small = (blocks.abs() < blocks.abs().amax(-1, keepdim=True) / _COARSE) & (blocks != 0)
        coarse = small.sum(-1, keepdim=True) >= 16
        rounded = rounded + torch.where(coarse, _integers((blocks - rounded).float()), 0.0)
    return rounded.view(rows, -1)[:, :width] if rows else values.double()


def _integers(blocks: Tensor) -> Tensor:
    largest = blocks.abs().amax(-1, keepdim=True)
    factor = torch.where(largest > 1e-30, _MOST / largest, 0.0)
    integers, unit = (blocks * factor).round(), torch.where(largest > 1e-30, largest / _MOST, 0.0)
    return integers.double() * unit


def _column_powers(weight: Tensor) -> Tensor:
    """Return the powers of two by which the columns of a weight are multiplied before they are rounded, [E]."""
    norms = weight.abs().sum(0).float()
    powers = torch.ones_like(norms, dtype=torch.float64)
    for block, out in zip(torch.split(norms, 32), torch.split(powers, 32), strict=True):
        usable = block.isfinite() & (block >= torch.finfo(torch.float32).tiny)
        exponents = torch.frexp(block).exponent
        found = exponents[usable].sort().values
        if len(found):
            away = found[len(found) // 2] - exponents
            out[usable & (away.abs() >= 3)] = 2.0 ** away[usable & (away.abs() >= 3)].clamp(-60, 60).double()
    return powers
