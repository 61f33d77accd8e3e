"""linear: float32 activations times stored weights, the operands in the precision asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops import extension
from fastreader.ops.extension import Serving
from fastreader.ops.linear import cpu
from fastreader.ops.linear.cpu import PackedWeight
from fastreader.ops.linear.reference import linear_reference
from fastreader.ops.linear.torch_impl import linear_add_cuda, linear_torch
from fastreader.ops.pointwise import ACTIVATIONS, gate

IMPLEMENTATIONS = ("auto", "reference", "torch", "cpu")
PRECISIONS = ("fast", "high", "exact")


def prepare(weight: Tensor, precision: str) -> Tensor | PackedWeight:
    """Lay a weight out for many products, where the kernels that serve it want another layout than [F, E].

    Args:
        weight: [F, E], floating.
        precision: one of `PRECISIONS`; the result serves that one alone.

    Returns:
        What `linear` takes in place of `weight`: a packed copy, or the weight itself. On a device there is no copy in
        the product's type, since the model would take twice its memory.
    """
    return weight if cpu.why_not(weight, precision) else cpu.pack(weight, precision)


def linear(
    input: Tensor,
    weight: Tensor | PackedWeight,
    bias: Tensor | None = None,
    *,
    precision: str = "fast",
    impl: str = "auto",
) -> Tensor:
    """``input @ weight.T + bias`` with float32 accumulation.

    "fast" rounds both operands to bfloat16; "high" splits them into two bfloat16 terms each, with errors near
    float32's; "exact" multiplies in float32 (float64 for a float64 input).

    Args:
        input: [T, E], float32; also float64 with precision "exact", and bfloat16 with "fast", which then rounds
            nothing.
        weight: [F, E], any floating type, as stored; or what `prepare` made of it.
        bias: [F] or None.
        precision: one of `PRECISIONS`; a prepared weight must have been prepared for it.
        impl: "auto", or one of `IMPLEMENTATIONS` by name, which runs exactly that or raises.

    Returns:
        [T, F] in float32, or float64 for a float64 input.

    Raises:
        InputError: shapes or dtypes do not fit, or an input requires a gradient.
        UnsupportedImplementationError: no such implementation, or the one named cannot run here.
    """
    _check(input, weight, bias, precision)
    if impl not in IMPLEMENTATIONS:
        raise UnsupportedImplementationError(f"linear: impl must be one of {', '.join(IMPLEMENTATIONS)}, got {impl!r}")
    if isinstance(weight, PackedWeight):
        if impl not in ("auto", "cpu"):
            raise UnsupportedImplementationError(f"linear: this weight was prepared for impl 'cpu', got {impl!r}")
        return cpu.linear_packed(input, weight, bias)
    if impl == "reference":
        return linear_reference(input, weight, bias, precision)
    why_not_cpu = cpu.why_not(weight, precision) if impl in ("auto", "cpu") else None
    if impl == "cpu" and why_not_cpu is not None:
        raise UnsupportedImplementationError(f"linear: impl 'cpu' cannot run: {why_not_cpu}")
    if impl == "torch" or why_not_cpu is not None:
        return linear_torch(input, weight, bias, precision)
    return cpu.linear_packed(input, cpu.pack(weight, precision), bias)


def linear_add(
    sum: Tensor, input: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None = None, *, precision: str = "fast"
) -> None:
    """``sum += linear(input, weight, bias)``, in place; without a tensor for the product where the kernels allow it.

    Args:
        sum: [T, F], float32 (float64 for a float64 input).
        input, weight, bias, precision: as `linear`.

    Raises:
        As `linear`.
    """
    _check(input, weight, bias, precision)
    width = weight.width if isinstance(weight, PackedWeight) else weight.shape[0]
    kind = torch.float64 if input.dtype == torch.float64 else torch.float32
    if tuple(sum.shape) != (input.shape[0], width) or sum.dtype != kind:
        raise InputError(
            f"linear_add: sum must be [{input.shape[0]}, {width}] in {kind}, got {list(sum.shape)} in {sum.dtype}"
        )
    if isinstance(weight, PackedWeight) and sum.stride(1) == 1:
        cpu.linear_add_packed(sum, input, weight, bias)
    elif input.is_cuda and precision == "fast" and bias is None:
        assert isinstance(weight, Tensor)  # weights are packed on the CPU alone
        linear_add_cuda(sum, input, weight)
    else:
        sum += linear(input, weight, bias, precision=precision)


def linear_gated(
    input: Tensor,
    weight: Tensor | PackedWeight,
    bias: Tensor | None = None,
    *,
    activation: str,
    bf16: bool = False,
    precision: str = "fast",
) -> Tensor:
    """``activation(g) * u`` with g and u the two halves of ``linear(input, weight, bias)`` (Shazeer 2020, eq. 5).

    Args:
        input, weight, bias, precision: as `linear`, F even; the gate's rows of the weight come first.
        activation: one of `fastreader.ops.pointwise.ACTIVATIONS`.
        bf16: round the result to bfloat16.

    Returns:
        [T, F / 2] in float32 (float64 for a float64 input), or bfloat16.

    Raises:
        As `linear`; InputError for an odd F or an unknown activation.
    """
    _check(input, weight, bias, precision)
    width = weight.width if isinstance(weight, PackedWeight) else weight.shape[0]
    if width % 2:
        raise InputError(f"linear_gated: the weight must have an even number of rows, got {width}")
    if activation not in ACTIVATIONS:
        raise InputError(f"linear_gated: activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    if isinstance(weight, PackedWeight) and width % cpu.GATE_MULTIPLE == 0:
        return cpu.linear_gated_packed(input, weight, bias, activation, bf16)
    gates, up = linear(input, weight, bias, precision=precision).chunk(2, dim=1)
    return gate(gates, up, activation, bf16=bf16)


def status() -> list[Serving]:
    """Which implementation `impl="auto"` picks on each kind of device, and why."""
    missing = extension.why_missing()
    served = (
        Serving("cpu (fast, high)", "torch", missing)
        if missing
        else Serving(
            "cpu (fast, high)", "cpu", f"C++ kernels, up to {extension.best_instruction_set()} on this machine"
        )
    )
    return [served, Serving("exact, and other devices", "torch", "PyTorch's own products")]


def _check(input: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None, precision: str) -> None:
    if precision not in PRECISIONS:
        raise InputError(f"linear: precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    other = {"exact": torch.float64, "fast": torch.bfloat16}.get(precision)
    allowed = (torch.float32,) if other is None else (torch.float32, other)
    if input.dim() != 2 or input.dtype not in allowed:
        raise InputError(
            f"linear: input must be [T, E] in {' or '.join(str(d) for d in allowed)}, "
            f"got {list(input.shape)} in {input.dtype}"
        )
    if isinstance(weight, PackedWeight):
        shape: tuple[int, ...] = (weight.width, weight.depth)
        stored = weight.data
        if weight.precision != precision:
            raise InputError(f"linear: weight was prepared for precision {weight.precision!r}, got {precision!r}")
    else:
        shape = tuple(weight.shape)
        stored = weight
        if not weight.is_floating_point():
            raise InputError(f"linear: weight must be floating [F, {input.shape[1]}], got {weight.dtype}")
    if len(shape) != 2 or shape[1] != input.shape[1]:
        raise InputError(f"linear: weight must be [F, {input.shape[1]}], got {list(shape)}")
    if bias is not None and tuple(bias.shape) != (shape[0],):
        raise InputError(f"linear: bias must be [{shape[0]}], got {list(bias.shape)}")
    for name, tensor in (("input", input), ("weight", stored), ("bias", bias)):
        if tensor is None:
            continue
        if tensor.device != input.device:
            raise InputError(f"linear: {name} must be on {input.device} like input, got {tensor.device}")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise InputError(f"linear: {name} requires a gradient, and this op is forward only; use torch.no_grad()")
