"""rms_norm, rotary and gate in plain PyTorch, and the ops of the C++ kernels (csrc/pointwise.cpp) with their fakes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fastreader.ops.extension import define
from fastreader.ops.pointwise.reference import spread


@define("rms_norm(Tensor input, Tensor weight, float epsilon, bool to_bf16, str isa) -> Tensor")
@define("rotary(Tensor input, Tensor cosine, Tensor sine, bool hadamard, bool to_bf16, str isa) -> Tensor")
@define("gate(Tensor gate, Tensor up, str activation, bool to_bf16, str isa) -> Tensor")
def _fake(input: Tensor, *others: Any) -> Tensor:
    to_bf16 = others[-2]
    return input.new_empty(input.shape, dtype=torch.bfloat16 if to_bf16 else torch.float32)


def rms_norm_torch(input: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Run `rms_norm`."""
    return input * torch.rsqrt(input.square().mean(-1, keepdim=True) + epsilon) * weight


def rotary_torch(input: Tensor, cosine: Tensor, sine: Tensor, hadamard: bool) -> Tensor:
    """Run `rotary`."""
    turned = cosine.shape[1]
    part, rest = input[..., :turned], input[..., turned:]
    low, high = part.chunk(2, dim=-1)
    out = part * cosine[:, None] + torch.cat([-high, low], dim=-1) * sine[:, None]
    out = torch.cat([out, rest], dim=-1)
    return spread(out) if hadamard else out


def gate_torch(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """Run `gate`."""
    return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up
