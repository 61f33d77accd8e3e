"""linear in plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from fastreader.ops import triton_support
from fastreader.ops.linear.blocks import AT_ONCE, BlockTensor, multiply_in_parts


def linear_torch(input: Tensor, weight: Tensor, bias: Tensor | None, precision: str) -> Tensor:
    """Multiply the operands of `linear` with PyTorch.

    "bf16" on the CPU also rounds the result to bfloat16, since PyTorch has no bfloat16 product with a float32 result
    there; on CUDA it has one. "bf16x3" on CUDA is a sum of such products, of bfloat16 terms of the operands; elsewhere
    it is computed in float32, which is at least as accurate.
    """
    on_gpu = triton_support.on_gpu(input.device)
    if precision == "bf16x3" and on_gpu:
        terms = _terms(input, weight)
        out = product(*next(terms))
        for left, right in terms:
            product(left, right, out)
        return out if bias is None else out.add_(bias.float())
    if precision == "bf16":
        left, right = input.bfloat16(), weight.bfloat16()
        out = product(left, right.T) if on_gpu else (left @ right.T).float()
        return out if bias is None else out.add_(bias.float())
    bias = None if bias is None else bias.to(input.dtype)
    converts = weight.dtype != input.dtype or isinstance(weight, BlockTensor)
    if converts and not on_gpu and weight.numel() > AT_ONCE:
        return multiply_in_parts(input, weight, bias)
    return F.linear(input, weight.to(input.dtype), bias)


def linear_half(input: Tensor, weight: Tensor) -> Tensor:
    """Return ``input @ weight.T`` [T, F] in bfloat16, of bfloat16 operands.

    Products are added in float32, parts of a sum that cuBLAS splits over programs in bfloat16, unless
    `torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction` is False.
    """
    return torch.mm(input.bfloat16(), weight.bfloat16().T)


def linear_add_cuda(sum: Tensor, input: Tensor, weight: Tensor, precision: str) -> None:
    """Add ``input @ weight.T`` to `sum` [T, F] float32 by products of bfloat16 operands, all on CUDA.

    "bf16" is one product, "bf16x3" two (three if the weight is not bfloat16).
    """
    if precision == "bf16":
        product(input.bfloat16(), weight.bfloat16().T, sum)
        return
    for left, right in _terms(input, weight):
        product(left, right, sum)


def split(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return two bfloat16 tensors whose sum is `values` up to 2^-16 of each value."""
    high = values.bfloat16()
    return high, (values - high).bfloat16()


def _terms(input: Tensor, weight: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the factors, [T, E] and [E, F], of the products that "bf16x3" adds up, small ones first."""
    high, low = split(input)
    if weight.dtype == torch.bfloat16:
        yield low, weight.T
        yield high, weight.T
        return
    weight_high, weight_low = split(weight)
    yield low, weight_high.T
    yield high, weight_low.T
    yield high, weight_high.T


def product(left: Tensor, right: Tensor, sum: Tensor | None = None) -> Tensor:
    """Multiply half types on CUDA with a float32 result [T, F], which is added to `sum` in place if given."""
    if sum is None:
        return torch.mm(left, right, out_dtype=torch.float32)
    return torch.addmm(sum, left, right, out_dtype=torch.float32, out=sum)
