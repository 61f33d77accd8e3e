"""rms_norm, rotary and gate: in float32 C++ on the CPU and Triton on CUDA, PyTorch for any other device or type."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops import extension
from fastreader.ops.extension import Serving
from fastreader.ops.pointwise import schema as _schema  # noqa: F401  (defines the ops)
from fastreader.ops.triton_support import cuda_serving, why_not

IMPLEMENTATIONS = ("auto", "torch", "cpu", "triton")
ACTIVATIONS = ("silu", "gelu_tanh")


def rms_norm(input: Tensor, weight: Tensor, epsilon: float, *, bf16: bool = False, impl: str = "auto") -> Tensor:
    """``input / sqrt(mean(input^2) + epsilon) * weight`` over the last axis (Zhang & Sennrich 2019, eq. 4).

    Args:
        input: [T, E], float32 or float64.
        weight: [E], of input's type.
        epsilon: added to the mean square.
        bf16: round the result to bfloat16.
        impl: "auto", or one of `IMPLEMENTATIONS` by name, which runs exactly that or raises.

    Returns:
        [T, E] of input's type, or bfloat16.

    Raises:
        InputError: shapes or types do not fit, or an input requires a gradient.
        UnsupportedImplementationError: no such implementation, or the one named cannot run here.
    """
    if input.dim() != 2 or tuple(weight.shape) != (input.shape[1],):
        raise InputError(f"rms_norm: expected [T, E] and [E], got {list(input.shape)} and {list(weight.shape)}")
    _check("rms_norm", input=input, weight=weight)
    chosen = _chosen("rms_norm", impl, input)
    if chosen == "cpu":
        out: Tensor = torch.ops.fastreader.rms_norm(input, weight, epsilon, bf16, extension.instruction_set())
        return out
    if chosen == "triton":
        from fastreader.ops.pointwise.triton import rms_norm_triton

        return rms_norm_triton(input, weight, epsilon, bf16)
    out = input * torch.rsqrt(input.square().mean(-1, keepdim=True) + epsilon) * weight
    return out.bfloat16() if bf16 else out


def rotary(input: Tensor, cosine: Tensor, sine: Tensor, *, bf16: bool = False, impl: str = "auto") -> Tensor:
    """Turn the first R of D features by their angles, first half against second (Su et al. 2021, eq. 34).

    Args:
        input: [T, H, D], float32 or float64; tokens and heads may be strided.
        cosine, sine: [T, R] of input's type, R even and at most D; features beyond R pass unchanged.
        bf16: round the result to bfloat16.
        impl: "auto", or one of `IMPLEMENTATIONS` by name.

    Returns:
        [T, H, D], contiguous.

    Raises:
        As `rms_norm`.
    """
    turned = cosine.shape[-1]
    fits = input.dim() == 3 and cosine.shape == sine.shape and tuple(cosine.shape) == (input.shape[0], turned)
    if not fits or turned % 2 or turned > input.shape[2]:
        raise InputError(
            "rotary: expected [T, H, D] and twice [T, R] with R even and at most D, got "
            f"{list(input.shape)}, {list(cosine.shape)} and {list(sine.shape)}"
        )
    _check("rotary", input=input, cosine=cosine, sine=sine)
    chosen = _chosen("rotary", impl, input)
    if chosen == "cpu":
        out: Tensor = torch.ops.fastreader.rotary(input, cosine, sine, bf16, extension.instruction_set())
        return out
    if chosen == "triton":
        from fastreader.ops.pointwise.triton import rotary_triton

        return rotary_triton(input, cosine, sine, bf16)
    part, rest = input[..., :turned], input[..., turned:]
    low, high = part.chunk(2, dim=-1)
    done = part * cosine[:, None] + torch.cat([-high, low], dim=-1) * sine[:, None]
    done = torch.cat([done, rest], dim=-1)
    return done.bfloat16() if bf16 else done


def gate(gate: Tensor, up: Tensor, activation: str, *, bf16: bool = False, impl: str = "auto") -> Tensor:
    """``activation(gate) * up`` (Shazeer 2020, eq. 5).

    Args:
        gate, up: [T, F], float32 or float64; rows may be strided.
        activation: "silu" or "gelu_tanh" (the tanh approximation of GELU).
        bf16: round the result to bfloat16.
        impl: "auto", or one of `IMPLEMENTATIONS` by name.

    Returns:
        [T, F], contiguous.

    Raises:
        As `rms_norm`.
    """
    if gate.dim() != 2 or gate.shape != up.shape:
        raise InputError(f"gate: expected two [T, F], got {list(gate.shape)} and {list(up.shape)}")
    if activation not in ACTIVATIONS:
        raise InputError(f"gate: activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    _check("gate", gate=gate, up=up)
    chosen = _chosen("gate", impl, gate)
    if chosen == "cpu":
        out: Tensor = torch.ops.fastreader.gate(gate, up, activation, bf16, extension.instruction_set())
        return out
    if chosen == "triton":
        from fastreader.ops.pointwise.triton import gate_triton

        return gate_triton(gate, up, activation, bf16)
    done = (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up
    return done.bfloat16() if bf16 else done


def status() -> list[Serving]:
    """Which implementation `impl="auto"` picks on each kind of device, and why."""
    missing = extension.why_missing()
    served = (
        Serving("cpu in float32", "torch", missing)
        if missing
        else Serving("cpu in float32", "cpu", f"C++ kernels, {extension.best_instruction_set()}")
    )
    return [served, cuda_serving("float32"), Serving("float64, and other devices", "torch", "PyTorch's own operators")]


def _chosen(op: str, impl: str, input: Tensor) -> str:
    """The implementation that serves this call."""
    if impl not in IMPLEMENTATIONS:
        raise UnsupportedImplementationError(f"{op}: impl must be one of {', '.join(IMPLEMENTATIONS)}, got {impl!r}")
    if impl == "torch":
        return impl
    if impl == "auto" and input.is_cuda:
        return "triton" if input.dtype == torch.float32 and why_not(input) is None else "torch"
    if impl == "triton":
        why = why_not(input) or (None if input.dtype == torch.float32 else f"it takes float32, got {input.dtype}")
    else:
        why = extension.why_missing()
        if why is None and (input.device.type != "cpu" or input.dtype != torch.float32):
            why = f"the C++ kernels take float32 on the CPU, got {input.dtype} on {input.device}"
    if impl == "auto":
        return "cpu" if why is None else "torch"
    if why is not None:
        raise UnsupportedImplementationError(f"{op}: impl {impl!r} cannot run here: {why}")
    return impl


def _check(op: str, **tensors: Tensor) -> None:
    first = next(iter(tensors.values()))
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, torch.float64) or tensor.dtype != first.dtype:
            raise InputError(f"{op}: {name} must be float32 or float64 like the others, got {tensor.dtype}")
        if tensor.device != first.device:
            raise InputError(f"{op}: {name} must be on {first.device} like the others, got {tensor.device}")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise InputError(f"{op}: {name} requires a gradient, and this op is forward only; use torch.no_grad()")
