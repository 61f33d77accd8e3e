"""Inputs of rms_norm, rotary and gate, and their results by transformers and PyTorch in float64."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

NORMS = [(0, 8), (1, 1), (3, 24), (70, 576), (129, 97), (5, 3000)]  # rows, size
ROTARIES = [
    (0, 2, 8, 8),
    (5, 3, 64, 64),
    (33, 1, 40, 20),
    (7, 2, 10, 6),
    (3, 2, 96, 32),
    (4, 2, 8, 0),
]  # tokens, heads, size, angles
GATES = [(0, 3), (1, 1), (37, 83), (3, 5000)]  # rows, size


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return F.rms_norm(x.double(), x.shape[1:], weight.double(), epsilon)


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn features by transformers. Those beyond the angles pass unchanged."""
    width = cosine.shape[1]
    part = x[None].double().transpose(1, 2)[..., :width]
    out, _ = apply_rotary_pos_emb(part, part, cosine[None].double(), sine[None].double())
    return torch.cat([out[0].transpose(0, 1), x[..., width:].double()], dim=-1)


def gated(x: Tensor, up: Tensor, activation: str) -> Tensor:
    wide = x.double()
    return (F.silu(wide) if activation == "silu" else F.gelu(wide, approximate="tanh")) * up.double()


def heads_of(tokens: int, heads: int, size: int, seed: int = 0) -> Tensor:
    """Draw [T, H, D] with strided rows, like a part of joined queries, keys and values."""
    return random(tokens, heads * size + 16, seed=seed)[:, 16:].unflatten(1, (heads, size))


def halves_of(rows: int, size: int) -> tuple[Tensor, Tensor]:
    """Draw two strided [T, F], with values for which exponentials overflow."""
    joined = random(rows, 2 * size) * 4
    extremes = torch.tensor([-200.0, -90.0, 0.0, 90.0, 200.0, -1e30])[: 2 * size]
    joined[:1, : len(extremes)] = extremes
    left, right = joined.chunk(2, dim=1)
    return left, right
