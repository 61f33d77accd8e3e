"""merge_state as its definition reads, for any number of states: any dtype up to float64."""

from __future__ import annotations

import torch
from torch import Tensor


def merge_reference(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Merge attention states over disjoint keys.

    Args:
        out: [S, T, H, Dv], output of each state.
        lse: [S, T, H], natural log-sum-exp of each state.

    Returns:
        out [T, H, Dv] and lse [T, H], in float32, or float64 if an input has it.
    """
    dtype = torch.promote_types(torch.promote_types(out.dtype, lse.dtype), torch.float32)
    total = torch.logsumexp(lse.to(dtype), dim=0)
    weight = torch.exp(lse.to(dtype) - total.masked_fill(total.isneginf(), 0.0))  # 0 for an empty state
    return (weight[..., None] * out.to(dtype)).sum(0), total
