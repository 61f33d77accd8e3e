"""rms_norm, rotary and gate: float32 C++ on the CPU, Triton on CUDA, PyTorch for other devices and types."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastreader.errors import InputError
from fastreader.ops import extension, triton_support
from fastreader.ops.dispatch import SERVED, choose
from fastreader.ops.operands import check_activation, check_operands, name_of
from fastreader.ops.pointwise import reference, torch_impl

_DTYPES = (torch.float32, torch.float64)
_GATED = (*_DTYPES, torch.bfloat16)


def rms_norm(input: Tensor, weight: Tensor, epsilon: float, *, bf16: bool = False, impl: str = "auto") -> Tensor:
    """Compute ``input / sqrt(mean(input^2) + epsilon) * weight`` over the last axis (Zhang & Sennrich 2019, eq. 4).

    Args:
        input: [T, E], float32 or float64.
        weight: [E], of input's type.
        epsilon: added to the mean square.
        bf16: round the result to bfloat16.
        impl: "auto", or one of `IMPLEMENTATIONS` by name, which runs exactly that or raises.

    Returns:
        [T, E] of input's type, or bfloat16.

    Raises:
        InputError: if shapes or types do not fit, or an input requires a gradient.
        UnsupportedImplementationError: if `impl` is unknown, or the named one cannot run here.
    """
    if input.dim() != 2 or tuple(weight.shape) != (input.shape[1],):
        raise InputError(f"rms_norm: expected [T, E] and [E], got {list(input.shape)} and {list(weight.shape)}")
    return _run("rms_norm", impl, bf16, (input, weight, epsilon), input=input, weight=weight)


def rotary(
    input: Tensor,
    cosine: Tensor,
    sine: Tensor,
    *,
    heads: int | None = None,
    hadamard: bool = False,
    bf16: bool = False,
    impl: str = "auto",
) -> Tensor:
    """Turn the first R of D features by their angles, first half against second (Su et al. 2021, eq. 34).

    Queries and keys that are both multiplied by a Hadamard matrix have the same products. A few large features are then
    spread over all, so that rounding changes the products less (Ashkboos et al. 2024, QuaRot, section 4).

    Args:
        input: [T, H, D], float32 or float64; tokens and heads may be strided.
        cosine, sine: [T, R] of input's type, R even and at most D; features beyond R pass unchanged.
        heads: number of heads to turn; later ones (values next to queries and keys) pass unchanged. None turns all.
        hadamard: then multiply each head that turns by a Hadamard matrix over the square root of its size, block by
            block: a block is the largest power of two that divides D. Heads of more than 1,024 features pass unchanged.
        bf16, impl: see `rms_norm`, which raises the same errors.

    Returns:
        [T, H, D], contiguous.
    """
    turned = cosine.shape[-1]
    if heads is not None and not (input.dim() == 3 and 0 <= heads <= input.shape[1]):
        raise InputError(f"rotary: heads must be from 0 to H of [T, H, D], got {heads} and {list(input.shape)}")
    fits = input.dim() == 3 and cosine.shape == sine.shape and tuple(cosine.shape) == (input.shape[0], turned)
    if not fits or turned % 2 or turned > input.shape[2]:
        raise InputError(
            "rotary: expected [T, H, D] and twice [T, R] with R even and at most D, got "
            f"{list(input.shape)}, {list(cosine.shape)} and {list(sine.shape)}"
        )
    operands = {"input": input, "cosine": cosine, "sine": sine}
    chosen = _chosen("rotary", impl, operands, hadamard)
    if chosen == "triton":
        from fastreader.ops.pointwise.triton import rotary_triton

        out: Tensor = rotary_triton(input, cosine, sine, bf16, heads)
        return out
    if heads is None or heads == input.shape[1]:
        return _served("rotary", chosen, bf16, (input, cosine, sine, hadamard))
    kept = input[:, heads:].bfloat16() if bf16 else input[:, heads:]
    return torch.cat([_served("rotary", chosen, bf16, (input[:, :heads], cosine, sine, hadamard)), kept], dim=1)


def gate(gate: Tensor, up: Tensor, activation: str, *, bf16: bool = False, impl: str = "auto") -> Tensor:
    """Compute ``activation(gate) * up`` (Shazeer 2020, eq. 5).

    Args:
        gate, up: [T, F], float32, float64, or bfloat16 (computed in float32); rows may be strided.
        activation: "silu" or "gelu_tanh" (the tanh approximation of GELU).
        bf16, impl: see `rms_norm`, which raises the same errors.

    Returns:
        [T, F], contiguous.
    """
    if gate.dim() != 2 or gate.shape != up.shape:
        raise InputError(f"gate: expected two [T, F], got {list(gate.shape)} and {list(up.shape)}")
    check_activation("gate", activation)
    return _run("gate", impl, bf16, (gate, up, activation), gate=gate, up=up)


def _run(op: str, impl: str, bf16: bool, arguments: tuple[Any, ...], **operands: Tensor) -> Tensor:
    """Check the operands, and run the implementation that serves the call."""
    return _served(op, _chosen(op, impl, operands), bf16, arguments)


def _served(op: str, chosen: str, bf16: bool, arguments: tuple[Any, ...]) -> Tensor:
    """Run an implementation by name."""
    out: Tensor
    if chosen != "triton" and arguments[0].dtype == torch.bfloat16:
        arguments = tuple(each.float() if isinstance(each, Tensor) else each for each in arguments)
    if chosen == "cpu":
        out = getattr(torch.ops.fastreader, op)(*arguments, bf16, extension.instruction_set())
        return out
    if chosen == "triton":
        from fastreader.ops.pointwise import triton

        out = getattr(triton, f"{op}_triton")(*arguments, bf16)
        return out
    out = getattr(reference if chosen == "reference" else torch_impl, f"{op}_{chosen}")(*arguments)
    return out.bfloat16() if bf16 else out


def _chosen(op: str, impl: str, operands: dict[str, Tensor], hadamard: bool = False) -> str:
    """Check the operands, and return the implementation that serves the call."""
    name, first = next(iter(operands.items()))
    like: tuple[Hashable, ...] | None = None
    if impl == "auto" and not torch.is_grad_enabled():
        like = (op, hadamard)
        for operand in operands.values():
            like += operand.dtype, operand.device
        if (known := SERVED.get(like)) is not None:
            return known
    dtypes = _GATED if op == "gate" else _DTYPES
    if first.dtype not in dtypes:
        check_operands(op, {name: first}, dtypes)
    check_operands(op, operands)

    def why_not_triton() -> str | None:
        why = "it multiplies by no Hadamard matrix" if hadamard else triton_support.why_not(first)
        return why if why or first.dtype != torch.float64 else f"it takes no {name_of(first.dtype)}"

    chosen = choose(op, impl, first, cpu=partial(extension.why_not, first, (torch.float32,)), triton=why_not_triton)
    if like is not None:
        SERVED[like] = chosen
    return chosen
