"""Tree attention with gradients, in plain PyTorch.

The operators of `fastreader.ops` are forward only. This is the same attention, key j visible to query i exactly when
``j <= i < until[j]``, as one dense attention for each stretch of queries over the keys it can see; autograd does the
rest. K and V of a stretch are gathered copies, so memory grows with (stretches x keys seen), not with T x T.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastreader.models.attention import TreePass
from fastreader.ops.tree_attention.tiled import visible_among


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: TreePass,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Attention of one layer over a packed tree, differentiable in query, key and value.

    Args:
        query: [T, Hq, D]; key: [T, Hk, D]; value: [T, Hk, Dv], any floating type on one device.
        state: the pass; its plan says which keys each stretch of queries needs.
        scale: factor on the scores.
        window: a key is visible only when query position - key position < window; None for all.
        softcap: scores become ``softcap * tanh(score / softcap)``; None for no bound.

    Returns:
        [T, Hq, Dv] in value's type.
    """
    places = torch.arange(len(query), device=query.device)
    tiles = state.plan.tiles
    blocks = []
    for start, stop, keys in zip(tiles.starts, tiles.stops, tiles.keys, strict=True):
        index = torch.from_numpy(keys).to(query.device)
        mask = visible_among(index, state.until, places[start:stop])
        if window is not None:
            mask &= state.positions[start:stop, None] - state.positions[index][None, :] < window
        blocks.append(_dense(query[start:stop], key[index], value[index], mask, scale, softcap))
    return torch.cat(blocks)


def _dense(
    query: Tensor,  # [q, Hq, D]
    key: Tensor,  # [n, Hk, D]
    value: Tensor,  # [n, Hk, Dv]
    mask: Tensor,  # bool [q, n], a token sees itself, so no row is empty
    scale: float,
    softcap: float | None,
) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    q = query.transpose(0, 1)  # [Hq, q, D]
    k = key.transpose(0, 1).repeat_interleave(groups, dim=0)  # [Hq, n, D]
    v = value.transpose(0, 1).repeat_interleave(groups, dim=0)
    if softcap is None:
        out = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=scale)[0]
    else:
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        score = softcap * torch.tanh(q.to(wide) @ k.to(wide).transpose(-1, -2) * (scale / softcap))
        weight = score.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        out = (weight @ v.to(wide)).to(value.dtype)
    return out.transpose(0, 1)
