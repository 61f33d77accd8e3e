"""linear: float32 activations times stored weights, by one of five kinds of products."""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops import triton_support
from fastreader.ops.dispatch import choose
from fastreader.ops.linear import cpu
from fastreader.ops.linear.cpu import PackedWeight
from fastreader.ops.linear.reference import linear_reference
from fastreader.ops.linear.torch_impl import linear_add_cuda, linear_half, linear_torch
from fastreader.ops.operands import check_activation, check_operands
from fastreader.ops.pointwise import gate

Products = Literal["bf16", "bf16x3", "float32", "int16", "torch"]
PRODUCTS: tuple[Products, ...] = get_args(Products)


def prepare(weight: Tensor, precision: str) -> Tensor | PackedWeight:
    """Lay a weight out for many products, if the kernels that serve it want another layout than [F, E].

    Args:
        weight: [F, E], floating.
        precision: one of `PRODUCTS`; the result serves only this one.

    Returns:
        What `linear` takes instead of `weight`: a packed copy, or the weight itself. Devices get no copy in the
        product's type, since the model would take twice its memory.
    """
    return weight if cpu.why_not(weight, precision) else cpu.pack(weight, precision)


def linear(
    input: Tensor,
    weight: Tensor | PackedWeight,
    bias: Tensor | None = None,
    *,
    precision: str = "bf16",
    impl: str = "auto",
) -> Tensor:
    """Compute ``input @ weight.T + bias`` with float32 accumulation.

    "bf16" rounds both operands to bfloat16; "bf16x3" represents each as the sum of two bfloat16 terms, with errors near
    float32's; "torch" is PyTorch's own product in float32 (float64 for a float64 input). The C++ kernels have two more,
    where the sums of a row do not depend on the other rows, as with "bf16" and "bf16x3" on the CPU: "float32", and
    "int16", which represents 32 values as integers of 14 bits and a scale.

    Args:
        input: [T, E], float32; also float64 with precision "torch", and bfloat16 with "bf16", which then rounds
            nothing.
        weight: [F, E], any floating type, as stored; or the result of `prepare`.
        bias: [F] or None.
        precision: one of `PRODUCTS`; a prepared weight must have been prepared for it.
        impl: "auto", or one of `IMPLEMENTATIONS` by name, which runs exactly that or raises.

    Returns:
        [T, F] in float32, or float64 for a float64 input.

    Raises:
        InputError: if shapes, dtypes or devices do not fit, or an input requires a gradient.
        UnsupportedImplementationError: if `impl` is unknown, or the named one cannot run here.
    """
    stored, _ = _check(input, weight, bias, precision)
    packed = weight if isinstance(weight, PackedWeight) else None
    if packed is not None and impl == "auto":
        chosen = "cpu"
    else:
        chosen = choose("linear", impl, stored, cpu=partial(cpu.why_not, weight, precision))
    if packed is not None and chosen != "cpu":
        raise UnsupportedImplementationError(f"linear: this weight was prepared for impl 'cpu', got {impl!r}")
    if precision in ("float32", "int16") and chosen == "torch":
        why = cpu.why_not(stored, precision) or "impl 'torch' has no such products"
        raise UnsupportedImplementationError(f"linear: precision {precision!r} cannot run here: {why}")
    if chosen == "cpu":
        packed = packed or cpu.pack(stored, precision)
        out: Tensor = torch.ops.fastreader.linear(input, packed.data, packed.width, bias, *packed.layout)
        return out
    return (linear_reference if chosen == "reference" else linear_torch)(input, stored, bias, precision)


def linear_add(
    sum: Tensor, input: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None = None, *, precision: str = "bf16"
) -> None:
    """Add ``linear(input, weight, bias)`` to `sum` in place, without a tensor for the product if the kernels allow it.

    Args:
        sum: [T, F], float32 (float64 for a float64 input).
        input, weight, bias, precision: see `linear`.

    Raises:
        InputError: if `linear` raises it, or `sum` does not fit.
    """
    stored, width = _check(input, weight, bias, precision)
    dtype = torch.float64 if input.dtype == torch.float64 else torch.float32
    if tuple(sum.shape) != (input.shape[0], width) or sum.dtype != dtype:
        raise InputError(
            f"linear_add: sum must be [{input.shape[0]}, {width}] in {dtype}, got {list(sum.shape)} in {sum.dtype}"
        )
    if isinstance(weight, PackedWeight) and sum.stride(1) == 1:
        torch.ops.fastreader.linear_add_(sum, input, weight.data, bias, *weight.layout)
    elif triton_support.on_gpu(input.device) and precision in ("bf16", "bf16x3") and bias is None:
        linear_add_cuda(sum, input, stored, precision)
    else:
        sum += linear(input, weight, bias, precision=precision)


def linear_gated(
    input: Tensor,
    weight: Tensor | PackedWeight,
    bias: Tensor | None = None,
    *,
    activation: str,
    bf16: bool = False,
    precision: str = "bf16",
) -> Tensor:
    """Compute ``activation(g) * u``, where g and u are the halves of ``linear(input, weight, bias)`` (`gate`).

    Args:
        input, weight, bias, precision: see `linear`, with F even; the gate's rows of the weight come first.
        activation: one of `fastreader.ops.pointwise.ACTIVATIONS`.
        bf16: round the result to bfloat16; on a GPU, with precision "bf16" and no bias, g and u are rounded too.

    Returns:
        [T, F / 2] in float32 (float64 for a float64 input), or bfloat16.

    Raises:
        InputError: if `linear` raises it, F is odd or the activation is unknown.
    """
    width = weight.width if isinstance(weight, PackedWeight) else weight.shape[0]
    if width % 2:
        raise InputError(f"linear_gated: the weight must have an even number of rows, got {width}")
    check_activation("linear_gated", activation)
    if isinstance(weight, PackedWeight) and width % cpu.GATE_MULTIPLE == 0:
        _check(input, weight, bias, precision)
        out: Tensor = torch.ops.fastreader.linear_gated(
            input, weight.data, width, bias, activation, bf16, *weight.layout
        )
        return out
    # A GPU moves float32 results about as long as it multiplies, and what they gate is rounded to bfloat16 anyway.
    half = bf16 and precision == "bf16" and bias is None and triton_support.on_gpu(input.device)
    if half:
        stored, _ = _check(input, weight, bias, precision)
        product = linear_half(input, stored)
    else:
        product = linear(input, weight, bias, precision=precision)
    gates, up = product.chunk(2, dim=1)
    return gate(gates, up, activation, bf16=bf16)


def _check(input: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None, precision: str) -> tuple[Tensor, int]:
    """Check the operands, and return the stored weight (packed or not) and its number of rows."""
    if precision not in PRODUCTS:
        raise InputError(f"linear: precision must be one of {', '.join(PRODUCTS)}, got {precision!r}")
    if input.dim() != 2:
        raise InputError(f"linear: input must be [T, E], got {list(input.shape)}")
    if input.dtype != torch.float32:
        other = {"torch": torch.float64, "bf16": torch.bfloat16}.get(precision, torch.float32)
        check_operands("linear", {"input": input}, dict.fromkeys((torch.float32, other)))
    if isinstance(weight, PackedWeight):
        stored, shape = weight.data, torch.Size((weight.width, weight.depth))
        if weight.precision != precision:
            raise InputError(f"linear: weight was prepared for precision {weight.precision!r}, got {precision!r}")
    else:
        stored, shape = weight, weight.shape
        if not weight.is_floating_point():
            raise InputError(f"linear: weight must be floating [F, {input.shape[1]}], got {weight.dtype}")
    if len(shape) != 2 or shape[1] != input.shape[1]:
        raise InputError(f"linear: weight must be [F, {input.shape[1]}], got {list(shape)}")
    if bias is not None and bias.shape != shape[:1]:
        raise InputError(f"linear: bias must be [{shape[0]}], got {list(bias.shape)}")
    elsewhere = stored.device != input.device or (bias is not None and bias.device != input.device)
    if elsewhere or torch.is_grad_enabled():
        check_operands("linear", {"input": input, "weight": stored, "bias": bias}, ())
    return stored, shape[0]
