"""rms_norm, rotary and gate as their definitions read: computed in float64, any dtype."""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

MOST_SPREAD = 1024  # features of a head


def rms_norm_reference(input: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return ``input / sqrt(mean(input^2) + epsilon) * weight`` over the last axis, in input's dtype."""
    x = input.double()
    mean_square = (x * x).mean(-1, keepdim=True)
    return (x / torch.sqrt(mean_square + epsilon) * weight.double()).to(input.dtype)


def rotary_reference(input: Tensor, cosine: Tensor, sine: Tensor, hadamard: bool = False) -> Tensor:
    """Turn the pairs (feature i, feature i + R / 2) of the first R features by their angles, in input's dtype."""
    turned = cosine.shape[1]
    low, high, rest = torch.split(
        input.double(), [turned // 2, turned // 2, input.shape[2] - turned], dim=-1
    )  # [T, H, ...]
    cosine_low, cosine_high = cosine.double()[:, None].chunk(2, dim=-1)  # [T, 1, R / 2]
    sine_low, sine_high = sine.double()[:, None].chunk(2, dim=-1)
    out = torch.cat([low * cosine_low - high * sine_low, high * cosine_high + low * sine_high, rest], dim=-1)
    return (spread(out) if hadamard else out).to(input.dtype)


def spread(heads: Tensor) -> Tensor:
    """Multiply blocks of the last axis by a Hadamard matrix over the square root of its size, see `rotary`."""
    size = heads.shape[-1]
    block = 1 if size > MOST_SPREAD else size & -size
    matrix = torch.from_numpy(scipy.linalg.hadamard(block, dtype=np.float64) / math.sqrt(block)).to(heads)
    return (heads.reshape(*heads.shape[:-1], size // block, block) @ matrix).reshape(heads.shape)


def gate_reference(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """Return ``activation(gate) * up``, in gate's dtype."""
    x = gate.double()
    if activation == "silu":
        activated = x * torch.sigmoid(x)
    else:
        activated = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return (activated * up.double()).to(gate.dtype)
