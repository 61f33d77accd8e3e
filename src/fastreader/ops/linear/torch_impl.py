"""linear in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def linear_torch(input: Tensor, weight: Tensor, bias: Tensor | None, precision: str) -> Tensor:
    """Multiply with PyTorch; arguments are those of `linear`.

    "fast" on the CPU also rounds the result to bfloat16, since PyTorch has no bfloat16 product with a float32 result
    there; on CUDA it has one. "high" is computed in float32, which is at least as accurate.
    """
    if precision == "fast":
        left, right = input.bfloat16(), weight.bfloat16()
        if input.device.type == "cuda":
            out = torch.mm(left, right.T, out_dtype=torch.float32)
        else:
            out = (left @ right.T).float()
        return out if bias is None else out.add_(bias.float())
    return F.linear(input, weight.to(input.dtype), None if bias is None else bias.to(input.dtype))


def linear_add_cuda(sum: Tensor, input: Tensor, weight: Tensor) -> None:
    """Add ``input @ weight.T`` to `sum` [T, F] float32 in one product of bfloat16 operands, all on CUDA."""
    torch.addmm(sum, input.bfloat16(), weight.bfloat16().T, out_dtype=torch.float32, out=sum)
