"""tree_attention as its definition reads: one dense mask, any dtype up to float64. For checks and small sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.ops.tree_attention.plan import AttentionContext


def visible(
    subtree_end: Tensor,
    query_node: Tensor,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """Return the mask: bool [Tq, Tk], True if key j is visible to query i, ``j <= query_node[i] < subtree_end[j]``."""
    keys = torch.arange(len(subtree_end), device=subtree_end.device)
    mask = (keys[None, :] <= query_node[:, None]) & (query_node[:, None] < subtree_end[None, :])
    if window is not None:
        assert query_positions is not None and key_positions is not None
        mask &= query_positions[:, None] - key_positions[None, :] < window
    return mask


def tree_attention_reference(context: AttentionContext) -> tuple[Tensor, Tensor]:
    """Return (out, lse) of a call, in float32, or float64 for float64 inputs."""
    dtype = torch.float64 if context.query.dtype == torch.float64 else torch.float32
    query = context.query.to(dtype)
    key = context.key.to(dtype).repeat_interleave(context.groups, dim=1)  # [Tk, Hq, D]
    value = context.value.to(dtype).repeat_interleave(context.groups, dim=1)  # [Tk, Hq, Dv]
    score = torch.einsum("qhd,khd->hqk", query, key) * context.scale
    if context.softcap is not None:
        score = context.softcap * torch.tanh(score / context.softcap)
    if context.slopes is not None:
        assert context.query_positions is not None and context.key_positions is not None
        distance = context.key_positions[None, :] - context.query_positions[:, None]
        score = score + context.slopes[:, None, None] * distance
    mask = visible(
        context.subtree_end, context.query_node, context.query_positions, context.key_positions, context.window
    )
    score = score.masked_fill(~mask, float("-inf"))
    lse = torch.logsumexp(score, dim=-1)  # [Hq, Tq], -inf if nothing is visible
    if context.sinks is not None:
        lse = torch.logaddexp(lse, context.sinks[:, None])
    weight = torch.exp(score - lse.masked_fill(lse.isneginf(), 0.0)[..., None])
    return torch.einsum("hqk,khd->qhd", weight, value), lse.transpose(0, 1).contiguous()
