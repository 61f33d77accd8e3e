"""Tree attention with gradients, in plain PyTorch.

The operators of `fastreader.ops` are forward only. This is the same attention, key j visible to query i exactly when
``j <= i < subtree_end[j]``, as one dense attention for each stretch of queries over the keys it can see; autograd does
the rest. K and V of a stretch are gathered copies, so memory grows with (stretches x keys seen), not with T x T.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fastreader.core.tree import PrefixTree
from fastreader.models.attention_keys import Scores
from fastreader.ops.tree_attention.tiled import visible_among
from fastreader.ops.tree_attention.tiles import cut_tiles


class GradientKeys:
    """The tokens of a tree attending to each other, as `models.keys.TreeKeys`, differentiable.

    Args:
        tree: the tree.
        device: where the model is.
    """

    def __init__(self, tree: PrefixTree, device: torch.device) -> None:
        self.subtree_end = torch.from_numpy(tree.subtree_end).to(device)
        self.positions = torch.from_numpy(tree.positions).to(device)
        self.tiles = cut_tiles(tree.subtree_end, np.arange(len(tree.subtree_end)))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """Attention of one layer.

        Args:
            layer: which; all are alike here.
            query: [T, Hq, D]; key: [T, Hk, D]; value: [T, Hk, Dv], any floating type on one device.
            scores: how scores are made; products are never split.

        Returns:
            [T, Hq, Dv] in value's type.
        """
        places = torch.arange(len(query), device=query.device)
        blocks = []
        for start, stop, seen in zip(self.tiles.starts, self.tiles.stops, self.tiles.keys, strict=True):
            index = torch.from_numpy(seen).to(query.device)
            mask = visible_among(index, self.subtree_end, places[start:stop])
            if scores.window is not None:
                mask &= self.positions[start:stop, None] - self.positions[index][None, :] < scores.window
            blocks.append(_dense(query[start:stop], key[index], value[index], mask, scores.scale, scores.softcap))
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
