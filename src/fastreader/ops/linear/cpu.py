"""linear by the C++ kernels (csrc/linear*): what they take, and the call."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastreader.ops import extension
from fastreader.ops.linear import schema as _schema  # noqa: F401  (defines the op)

GATE_MULTIPLE = 64  # of a gated weight's rows: two strips of 32


def why_not(weight: Tensor, precision: str) -> str | None:
    """Why the kernels cannot take this weight here, or None when they can."""
    missing = extension.why_missing()
    if missing is not None:
        return missing
    if weight.device.type != "cpu":
        return f"the C++ kernels run on the CPU, the weight is on {weight.device}"
    if precision == "exact":
        return "float32 products are PyTorch's own"
    if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"the C++ kernels take float32, bfloat16 and float16 weights, got {weight.dtype}"
    return None


@dataclass(frozen=True)
class PackedWeight:
    """A weight laid out for the CPU kernels.

    Attributes:
        data: uint8, the operand in strips of 32 rows; its layout depends on the instruction set.
        width: F, rows of the weight.
        depth: E, columns of the weight.
        precision: "fast" or "high", which it was packed for.
        bf16: whether the weight was stored in bfloat16.
        isa: the instruction set it was packed for.
    """

    data: Tensor
    width: int
    depth: int
    precision: str
    bf16: bool
    isa: str


def pack(weight: Tensor, precision: str) -> PackedWeight:
    """Lay out a weight [F, E] (float32, bfloat16 or float16) once, for many products."""
    weight = weight.float() if weight.dtype == torch.float16 else weight
    isa = extension.instruction_set()
    data = torch.ops.fastreader.linear_pack(weight, precision == "high", isa)
    return PackedWeight(data, weight.shape[0], weight.shape[1], precision, weight.dtype == torch.bfloat16, isa)


def linear_packed(input: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    """[T, E] float32 to [T, F] float32."""
    out: Tensor = torch.ops.fastreader.linear(
        input, weight.data, weight.width, bias, weight.precision == "high", weight.bf16, weight.isa
    )
    return out


def linear_add_packed(sum: Tensor, input: Tensor, weight: PackedWeight, bias: Tensor | None) -> None:
    """Add the product to `sum` [T, F] float32 of contiguous rows."""
    torch.ops.fastreader.linear_add_(sum, input, weight.data, bias, weight.precision == "high", weight.bf16, weight.isa)


def linear_gated_packed(
    input: Tensor, weight: PackedWeight, bias: Tensor | None, activation: str, bf16: bool
) -> Tensor:
    """[T, E] to [T, F / 2] float32 or bfloat16, F / 2 a multiple of 32."""
    out: Tensor = torch.ops.fastreader.linear_gated(
        input,
        weight.data,
        weight.width,
        bias,
        activation,
        bf16,
        weight.precision == "high",
        weight.bf16,
        weight.isa,
    )
    return out
