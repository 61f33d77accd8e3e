"""tree_attention as its definition reads: one dense mask, any dtype to float64. For checks and small sizes."""

from __future__ import annotations

import torch
from torch import Tensor


def visible(
    subtree_end: Tensor,
    query_node: Tensor,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """The mask: bool [Tq, Tk], True where key j is visible to query i, that is j <= query_node[i] < subtree_end[j]."""
    keys = torch.arange(len(subtree_end), device=subtree_end.device)
    mask = (keys[None, :] <= query_node[:, None]) & (query_node[:, None] < subtree_end[None, :])
    if window is not None:
        assert query_positions is not None and key_positions is not None
        mask &= query_positions[:, None] - key_positions[None, :] < window
    return mask


def tree_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    subtree_end: Tensor,
    query_node: Tensor,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Arguments as `tree_attention`; returns (output [Tq, Hq, Dv], lse [Tq, Hq]) in the accumulation dtype."""
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    groups = query.shape[1] // key.shape[1]
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    key = key.repeat_interleave(groups, dim=1)  # [Tk, Hq, D]
    value = value.repeat_interleave(groups, dim=1)  # [Tk, Hq, Dv]
    score = torch.einsum("qhd,khd->hqk", query, key) * scale
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    mask = visible(subtree_end, query_node, query_positions, key_positions, window)
    score = score.masked_fill(~mask, float("-inf"))
    lse = torch.logsumexp(score, dim=-1)  # [Hq, Tq], -inf where nothing is visible
    weight = torch.exp(score - lse.masked_fill(lse.isneginf(), 0.0)[..., None])
    return torch.einsum("hqk,khd->qhd", weight, value), lse.transpose(0, 1).contiguous()
