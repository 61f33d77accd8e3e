"""rms_norm, rotary and gate in plain PyTorch, with the arguments of the ops."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm_torch(input: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Run `rms_norm`."""
    return input * torch.rsqrt(input.square().mean(-1, keepdim=True) + epsilon) * weight


def rotary_torch(input: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Run `rotary`."""
    turned = cosine.shape[1]
    part, rest = input[..., :turned], input[..., turned:]
    low, high = part.chunk(2, dim=-1)
    out = part * cosine[:, None] + torch.cat([-high, low], dim=-1) * sine[:, None]
    return torch.cat([out, rest], dim=-1)


def gate_torch(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """Run `gate`."""
    return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up
