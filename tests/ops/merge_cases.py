"""Attention states to merge."""

from __future__ import annotations

import torch
from torch import Tensor


def states(count: int, tokens: int, heads: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Draw outputs [S, T, H, Dv] and lse [S, T, H]. Some states are empty, in some rows all of them."""
    generator = torch.Generator().manual_seed(count + size)
    out = torch.randn((count, tokens, heads, size), generator=generator).to(dtype)
    lse = torch.randn((count, tokens, heads), generator=generator) * 30
    lse[torch.rand(lse.shape, generator=generator) < 0.3] = float("-inf")
    if tokens:
        lse[:, 0] = float("-inf")
    out[lse.isneginf()] = 0
    return out, lse
