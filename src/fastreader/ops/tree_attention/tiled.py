"""tree_attention in plain PyTorch: one dense attention for each stretch of queries over the keys it can see.

Runs anywhere PyTorch does. The grouped heads of a key head are packed as query rows, so its keys are read
once for all of them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastreader.ops.tree_attention.tiles import Tiles


def tree_attention_tiled(
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
    tiles: Tiles,
    return_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    """Arguments as `tree_attention`; returns (output [Tq, Hq, Dv] in the input dtype, lse [Tq, Hq] or None).

    The softmax runs in float32 (float64 for float64 inputs). Without lse, soft cap or rows that may see
    nothing it is torch's fused kernel, otherwise written out.
    """
    rows, heads, _ = query.shape
    out = query.new_zeros(rows, heads, value.shape[-1])
    lse_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    lse = torch.full((rows, heads), float("-inf"), dtype=lse_dtype, device=query.device) if return_lse else None
    for start, stop, keys in zip(tiles.starts, tiles.stops, tiles.keys, strict=True):
        if len(keys) == 0:
            continue
        index = torch.from_numpy(keys).to(query.device)
        places = query_node[start:stop]
        mask = visible_among(index, subtree_end, places)
        if window is not None:
            assert query_positions is not None and key_positions is not None
            mask &= query_positions[start:stop, None] - key_positions[index][None, :] < window
        block_out, block_lse = _tile(query[start:stop], key[index], value[index], mask, scale, softcap, return_lse)
        out[start:stop] = block_out
        if lse is not None:
            assert block_lse is not None
            lse[start:stop] = block_lse
    return out, lse


def visible_among(index: Tensor, subtree_end: Tensor, query_node: Tensor) -> Tensor:
    """bool [q, n]: which of the keys `index` [n] the queries standing at `query_node` [q] see."""
    return (index[None, :] <= query_node[:, None]) & (query_node[:, None] < subtree_end[index][None, :])


def _tile(
    query: Tensor,  # [q, Hq, D]
    key: Tensor,  # [n, Hk, D]
    value: Tensor,  # [n, Hk, Dv]
    mask: Tensor,  # bool [q, n]
    scale: float,
    softcap: float | None,
    return_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    rows, heads, size = query.shape
    key_heads = key.shape[1]
    groups = heads // key_heads
    packed = query.reshape(rows, key_heads, groups, size).permute(1, 2, 0, 3).reshape(1, key_heads, groups * rows, size)
    k = key.transpose(0, 1)[None]  # [1, Hk, n, D]
    v = value.transpose(0, 1)[None]
    m = mask.repeat(groups, 1)  # [groups * q, n]
    lse: Tensor | None = None
    if softcap is None and not return_lse and bool(mask.any(dim=1).all()):
        out = F.scaled_dot_product_attention(packed, k, v, attn_mask=m, scale=scale)
    else:
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        score = (packed.to(wide) @ k.to(wide).transpose(-1, -2)) * scale
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        score = score.masked_fill(~m, float("-inf"))
        full = torch.logsumexp(score, dim=-1)  # [1, Hk, groups * q]
        weight = torch.exp(score - full.masked_fill(full.isneginf(), 0.0)[..., None])
        out = (weight @ v.to(wide)).to(query.dtype)
        lse = full.reshape(key_heads, groups, rows).permute(2, 0, 1).reshape(rows, heads)
    out = out.reshape(key_heads, groups, rows, value.shape[-1]).permute(2, 0, 1, 3)
    return out.reshape(rows, heads, value.shape[-1]), lse
