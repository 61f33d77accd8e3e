"""linear by the C++ kernels (csrc/linear*): what they take, and the call."""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.ops import extension
from fastreader.ops.linear import schema as _schema  # noqa: F401  (defines the op)


def why_not(input: Tensor, weight: Tensor, precision: str) -> str | None:
    """Why the kernels cannot take these inputs here, or None when they can."""
    missing = extension.why_missing()
    if missing is not None:
        return missing
    if input.device.type != "cpu":
        return f"the C++ kernels run on the CPU, the inputs are on {input.device}"
    if precision == "exact":
        return "float32 products are PyTorch's own"
    if weight.dtype not in (torch.float32, torch.bfloat16):
        return f"the C++ kernels take float32 and bfloat16 weights, got {weight.dtype}"
    return None


def linear_cpu(input: Tensor, weight: Tensor, bias: Tensor | None, precision: str) -> Tensor:
    """Arguments as `linear`."""
    out: Tensor = torch.ops.fastreader.linear(input, weight, bias, precision == "high", extension.instruction_set())
    return out
