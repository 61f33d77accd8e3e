"""What new tokens attend to; here, the tree they are part of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fastreader.core.tree import IntArray, PrefixTree
from fastreader.models.key_values import KeyValues, Reuse
from fastreader.ops.tree_attention import AttentionPlan, tree_attention


@dataclass(frozen=True)
class Scores:
    """How a layer makes attention scores.

    Attributes:
        scale: factor on the products of queries and keys.
        window: of the layer, in tokens; None for full attention.
        softcap: bound on the scores, or None.
        input_precision: how float32 operands are multiplied, see `tree_attention`.
    """

    scale: float
    window: int | None
    softcap: float | None
    input_precision: str | None


class Keys(Protocol):
    """What the new tokens of one pass attend to."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """Attention of one layer.

        Args:
            layer: which.
            query: [N, Hq, D], of the new tokens, rotated.
            key, value: [N, Hk, D] and [N, Hk, Dv], of the new tokens.
            scores: how scores are made.

        Returns:
            [N, Hq, Dv]
        """
        ...


class TreeKeys:
    """The tokens of a tree attend to each other; all are new, or the keys and values of some are known.

    Args:
        tree: the tree.
        device: where the model is.
        reuse: which tokens are known, or None.
        record: takes every layer's keys and values of the whole tree, or None.
        impl: implementation of the op, "auto" or by name.
        rows: int64 [A], which of the new tokens ask; all when None.
    """

    def __init__(
        self,
        tree: PrefixTree,
        device: torch.device,
        reuse: Reuse | None = None,
        record: KeyValues | None = None,
        impl: str = "auto",
        rows: IntArray | None = None,
    ) -> None:
        places = None if reuse is None else reuse.fresh
        if rows is not None:
            places = rows if places is None else places[rows]
        own = tree.positions if places is None else tree.positions[places]
        self.subtree_end = torch.from_numpy(tree.subtree_end).to(device)
        self.positions = torch.from_numpy(tree.positions).to(device)
        self.own_positions = torch.from_numpy(own).to(device)
        self.query_node = None if places is None else torch.from_numpy(places).to(device)
        self.plan = AttentionPlan(tree.subtree_end, places, own, tree.positions)
        self.reuse = reuse
        self.record = record
        self.impl = impl

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """As `Keys.attend`."""
        if self.reuse is not None:
            key, value = self.reuse.join(layer, key, value)
        if self.record is not None:
            self.record.put(layer, key, value)
        out = tree_attention(
            query,
            key,
            value,
            self.subtree_end,
            query_node=self.query_node,
            query_positions=self.own_positions,
            key_positions=self.positions,
            scale=scores.scale,
            window=scores.window,
            softcap=scores.softcap,
            input_precision=scores.input_precision,
            plan=self.plan,
            impl=self.impl,
        )
        assert isinstance(out, Tensor)
        return out
