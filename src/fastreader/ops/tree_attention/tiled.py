"""tree_attention in plain PyTorch: one dense attention for each stretch of queries over the keys it can see.

It runs wherever PyTorch does. The query heads of a key head are packed as rows, so that its keys are read once for
all of them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastreader.ops.tree_attention.plan import AttentionContext


def tree_attention_tiled(context: AttentionContext) -> tuple[Tensor, Tensor]:
    """Return (out, lse) of a call, out in the input dtype.

    The softmax runs in float32 (float64 for float64 inputs). It is torch's fused kernel if it needs neither lse, soft
    cap, sinks nor slopes, and every row sees a key.
    """
    query, window = context.query, context.window
    rows, heads, _ = query.shape
    out = query.new_zeros(rows, heads, context.value.shape[-1])
    lse = query.new_full((rows if context.return_lse else 0, heads), float("-inf"), dtype=_wide(query))
    if context.sinks is not None:
        lse[:] = context.sinks  # of queries that see no key
    tiles = context.plan.tiles
    for start, stop, keys in zip(tiles.starts, tiles.stops, tiles.keys, strict=True):
        if len(keys) == 0:
            continue
        index = torch.from_numpy(keys).to(query.device)
        mask = visible_among(index, context.subtree_end, context.query_node[start:stop])
        if window is not None:
            assert context.query_positions is not None and context.key_positions is not None
            mask &= context.query_positions[start:stop, None] - context.key_positions[index][None, :] < window
        block_out, block_lse = _tile(context, slice(start, stop), index, mask)
        out[start:stop] = block_out
        if context.return_lse and block_lse is not None:
            lse[start:stop] = block_lse
    return out, lse


def visible_among(index: Tensor, subtree_end: Tensor, query_node: Tensor) -> Tensor:
    """Return bool [q, n]: which of the keys `index` [n] the queries at `query_node` [q] see."""
    return (index[None, :] <= query_node[:, None]) & (query_node[:, None] < subtree_end[index][None, :])


def _tile(
    context: AttentionContext,
    queries: slice,
    index: Tensor,  # int64 [n], the keys
    mask: Tensor,  # bool [q, n]
) -> tuple[Tensor, Tensor | None]:
    softcap, scale, sinks, slopes = context.softcap, context.scale, context.sinks, context.slopes
    query, key, value = context.query[queries], context.key[index], context.value[index]
    rows, heads, size = query.shape
    key_heads = key.shape[1]
    groups = heads // key_heads
    packed = query.reshape(rows, key_heads, groups, size).permute(1, 2, 0, 3).reshape(1, key_heads, groups * rows, size)
    k = key.transpose(0, 1)[None]  # [1, Hk, n, D]
    v = value.transpose(0, 1)[None]
    m = mask.repeat(groups, 1)  # [groups * q, n]
    lse: Tensor | None = None
    plain = softcap is None and sinks is None and slopes is None
    if plain and not context.return_lse and bool(mask.any(dim=1).all()):
        out = F.scaled_dot_product_attention(packed, k, v, attn_mask=m, scale=scale)
    else:
        wide = _wide(query)
        score = (packed.to(wide) @ k.to(wide).transpose(-1, -2)) * scale
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if slopes is not None:
            assert context.query_positions is not None and context.key_positions is not None
            distance = context.key_positions[index][None, :] - context.query_positions[queries, None]  # [q, n]
            score = score + (slopes.view(1, key_heads, groups, 1, 1) * distance).flatten(2, 3)
        score = score.masked_fill(~m, float("-inf"))
        full = torch.logsumexp(score, dim=-1)  # [1, Hk, groups * q]
        if sinks is not None:
            full = torch.logaddexp(full, sinks.view(1, key_heads, groups).repeat_interleave(rows, dim=2))
        weight = torch.exp(score - full.masked_fill(full.isneginf(), 0.0)[..., None])
        out = (weight @ v.to(wide)).to(query.dtype)
        lse = full.reshape(key_heads, groups, rows).permute(2, 0, 1).reshape(rows, heads)
    out = out.reshape(key_heads, groups, rows, value.shape[-1]).permute(2, 0, 1, 3)
    return out.reshape(rows, heads, value.shape[-1]), lse


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
