"""Tree attention and log-probabilities with gradients, in plain PyTorch.

The operators of `fastreader.ops` are forward only. `GradientKeys` is the same attention: key j is visible to query i
exactly if ``j <= i < subtree_end[j]``. Each stretch of queries attends densely to the keys it can see; autograd does
the rest. K and V of a stretch are gathered copies, so memory grows with (stretches x keys seen), not with T x T.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fastreader.core.tree import PrefixTree
from fastreader.errors import UnsupportedModelError
from fastreader.models.config.windows import Chunk
from fastreader.models.passes.packed_keys import AttentionParams
from fastreader.ops.tree_attention.plan import cut_tiles
from fastreader.ops.tree_attention.tiled import visible_among

_ROWS = 256  # rows of logits held at once: 50 MB at a vocabulary of 49,152


class GradientKeys:
    """The tokens of a tree attending to each other, like `models.attention_keys.TreeKeys` but differentiable.

    Args:
        tree: the tree.
        device: device of the model.
    """

    def __init__(self, tree: PrefixTree, device: torch.device) -> None:
        self.subtree_end = torch.from_numpy(tree.subtree_end).to(device)
        self.positions = torch.from_numpy(tree.positions).to(device)
        self.tiles = cut_tiles(tree.subtree_end, np.arange(len(tree.subtree_end)))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """Compute the attention of one layer.

        Args:
            layer: its index; unused, since all layers are alike here.
            query: [T, Hq, D]; key: [T, Hk, D]; value: [T, Hk, Dv], any floating type on one device.
            params: scale, window and soft cap; products are never split.

        Returns:
            [T, Hq, Dv] in value's type.

        Raises:
            UnsupportedModelError: if the layer has attention sinks, slopes or chunks.
        """
        places = torch.arange(len(query), device=query.device)
        if params.sinks is not None or params.slopes is not None or isinstance(params.window, Chunk):
            raise UnsupportedModelError(
                f"layer {layer} has attention sinks, slopes or chunks, which attention with gradients does not compute"
            )
        blocks = []
        for start, stop, seen in zip(self.tiles.starts, self.tiles.stops, self.tiles.keys, strict=True):
            index = torch.from_numpy(seen).to(query.device)
            mask = visible_among(index, self.subtree_end, places[start:stop])
            if params.window is not None:
                mask &= self.positions[start:stop, None] - self.positions[index][None, :] < params.window
            blocks.append(_dense(query[start:stop], key[index], value[index], mask, params.scale, params.softcap))
        return torch.cat(blocks)


def _dense(
    query: Tensor,  # [q, Hq, D]
    key: Tensor,  # [n, Hk, D]
    value: Tensor,  # [n, Hk, Dv]
    mask: Tensor,  # bool [q, n]; a token sees itself, so no row is empty
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
        score = softcap * torch.tanh(_upcast(q) @ _upcast(k).transpose(-1, -2) * (scale / softcap))
        weight = score.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        out = (weight @ _upcast(v)).to(value.dtype)
    return out.transpose(0, 1)


def logprobs(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    """Return log softmax(hidden weight^T)[target] in nats, with gradients to the hidden states.

    The backward pass computes the logits of each block of rows again, so rows x vocabulary is never held.

    Args:
        hidden: [R, E].
        weight: [V, E], needs no gradient.
        target: int64 [R].
        bias: [V] or None.
        scale: factor on the logits, applied before the soft cap.
        softcap: bound on the logits, or None.

    Returns:
        [R] in float32 (float64 for float64 hidden states).
    """
    blocks = [
        checkpoint(_block, hidden[rows], weight, target[rows], bias, scale, softcap, use_reentrant=False)
        for rows in (slice(i, i + _ROWS) for i in range(0, len(hidden), _ROWS))
    ]
    return torch.cat(blocks)


def _block(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    hidden = _upcast(hidden)
    logits = hidden @ weight.to(hidden.dtype).T
    if bias is not None:
        logits = logits + bias.to(logits.dtype)
    logits = logits * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits.log_softmax(dim=-1).gather(1, target[:, None])[:, 0]


def _upcast(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()
