"""What new tokens attend to: the tree they are part of, or the kept keys of one and the tokens written since."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.models.kv import KeyValues, Reuse
from fastreader.ops.merge_state import merge_state
from fastreader.ops.tree_attention import AttentionPlan, tree_attention
from fastreader.tree import IntArray, PrefixTree

_FIRST_ROOM = 16  # new tokens a row has room for at first; doubled when full, so that growing costs little


@dataclass(frozen=True)
class Scores:
    """How a layer makes attention scores.

    Attributes:
        scale: factor on the products of queries and keys.
        window: of the layer, in tokens; None for full attention.
        softcap: bound on the scores, or None.
        split: multiply as sums of two bfloat16 terms, see `tree_attention`.
    """

    scale: float
    window: int | None
    softcap: float | None
    split: bool


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
    """

    def __init__(
        self,
        tree: PrefixTree,
        device: torch.device,
        reuse: Reuse | None = None,
        record: KeyValues | None = None,
        impl: str = "auto",
    ) -> None:
        fresh = None if reuse is None else reuse.fresh
        own = tree.positions if fresh is None else tree.positions[fresh]
        self.until = torch.from_numpy(tree.until).to(device)
        self.positions = torch.from_numpy(tree.positions).to(device)
        self.own_positions = torch.from_numpy(own).to(device)
        self.anchor = None if fresh is None else torch.from_numpy(fresh).to(device)
        self.plan = AttentionPlan(tree.until, fresh, own, tree.positions)
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
            self.until,
            anchor=self.anchor,
            query_positions=self.own_positions,
            key_positions=self.positions,
            scale=scores.scale,
            window=scores.window,
            softcap=scores.softcap,
            split=scores.split,
            plan=self.plan,
            impl=self.impl,
        )
        assert isinstance(out, Tensor)
        return out


class RowKeys:
    """Rows that each write one token a step: their prompts' kept keys, and those of the tokens they wrote.

    The prompts are one packed tree, its keys kept once however many rows go on from a leaf. What a row wrote lies
    in a slot of its own; the two attentions are joined by their log-sum-exps.

    Args:
        tree: the prompts.
        prompt: keys and values of the tree.
        leaves: int64 [B], packed index each row goes on from; ascending, so that rows of one prompt are
            neighbours and share its key blocks.
        room: new tokens a row may write at most.
        windowed: whether any layer has a sliding window.
        device: where the model is.
        impl: implementation of the op, "auto" or by name.

    Attributes:
        place: int32 [B], position of each row's token of the pass now begun.
    """

    place: npt.NDArray[np.int32]

    def __init__(
        self,
        tree: PrefixTree,
        prompt: KeyValues,
        leaves: IntArray,
        room: int,
        windowed: bool,
        device: torch.device,
        impl: str = "auto",
    ) -> None:
        self._tree = tree
        self._prompt = prompt
        self._prompt_until = torch.from_numpy(tree.until).to(device)
        self._prompt_positions = torch.from_numpy(tree.positions).to(device)
        self._leaves = leaves
        self._room = room
        self._windowed = windowed
        self._device = device
        self._impl = impl
        self._written = KeyValues.empty()  # for each layer [slots * capacity, Hk, D]
        self._slots = np.arange(len(leaves), dtype=np.int64)
        self._slot_count = len(leaves)
        self._first: npt.NDArray[np.int32] = tree.positions[leaves] + np.int32(1)  # position of a slot's first token
        self._capacity = min(_FIRST_ROOM, room)
        self._steps = 0
        self._plan_prompt()

    @property
    def positions(self) -> npt.NDArray[np.int32]:
        """int32 [B], position of each row's next token."""
        positions: npt.NDArray[np.int32] = self._first[self._slots] + np.int32(self._steps)
        return positions

    def keep(self, rows: IntArray) -> None:
        """Go on with these rows only (indices into the present ones, ascending)."""
        self._slots = self._slots[rows]
        self._leaves = self._leaves[rows]
        self._plan_prompt()

    def begin(self) -> None:
        """Make ready for the pass of the next token of every row."""
        if self._steps == self._capacity:
            self._grow()
        self.place = positions = self.positions
        if self._windowed and self._steps:
            self._plan_prompt()
        anchor = self._slots * self._capacity + self._steps
        until = np.repeat(np.arange(1, self._slot_count + 1, dtype=np.int32) * self._capacity, self._capacity)
        depth = np.repeat(self._first, self._capacity) + np.tile(
            np.arange(self._capacity, dtype=np.int32), self._slot_count
        )
        self._own_plan = AttentionPlan(until, anchor, positions, depth)
        self._positions = torch.from_numpy(positions).to(self._device)
        self._own_until = torch.from_numpy(until).to(self._device)
        self._own_anchor = torch.from_numpy(anchor).to(self._device)
        self._own_positions = torch.from_numpy(depth).to(self._device)
        self._steps += 1

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """As `Keys.attend`, one new token a row."""
        if layer == len(self._written.keys):
            shape = self._slot_count * self._capacity, key.shape[1]
            self._written.put(layer, key.new_zeros(*shape, key.shape[2]), value.new_zeros(*shape, value.shape[2]))
        keys, values = self._written.keys[layer], self._written.values[layer]
        keys[self._own_anchor], values[self._own_anchor] = key, value
        prompt = self._attend(
            query,
            self._prompt.keys[layer],
            self._prompt.values[layer],
            self._prompt_until,
            self._prompt_anchor,
            self._prompt_positions,
            scores,
            self._prompt_plan,
        )
        own = self._attend(
            query, keys, values, self._own_until, self._own_anchor, self._own_positions, scores, self._own_plan
        )
        return merge_state(*prompt, *own)[0].to(query.dtype)

    def _attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        until: Tensor,
        anchor: Tensor,
        key_positions: Tensor,
        scores: Scores,
        plan: AttentionPlan,
    ) -> tuple[Tensor, Tensor]:
        out, lse = tree_attention(
            query,
            keys,
            values,
            until,
            anchor=anchor,
            query_positions=self._positions,
            key_positions=key_positions,
            scale=scores.scale,
            window=scores.window,
            softcap=scores.softcap,
            split=scores.split,
            return_lse=True,
            plan=plan,
            impl=self._impl,
        )
        # Parts rounded to bfloat16 before they are joined would be rounded twice.
        return out.to(lse.dtype), lse

    def _plan_prompt(self) -> None:
        """The prompts' keys stay where they are, so this holds until rows leave, or a window moves on."""
        self._prompt_anchor = torch.from_numpy(self._leaves).to(self._device)
        self._prompt_plan = AttentionPlan(self._tree.until, self._leaves, self.positions, self._tree.positions)

    def _grow(self) -> None:
        """Twice the room, for the rows that are left."""
        capacity = min(2 * self._capacity, self._room)
        kept = torch.from_numpy(self._slots).to(self._device)
        for tensors in (self._written.keys, self._written.values):
            for layer, old in enumerate(tensors):
                new = old.new_zeros(len(kept), capacity, *old.shape[1:])
                new[:, : self._capacity] = old.view(self._slot_count, self._capacity, *old.shape[1:])[kept]
                tensors[layer] = new.view(-1, *old.shape[1:])
        self._first = self._first[self._slots]
        self._slots = np.arange(len(kept), dtype=np.int64)
        self._slot_count = len(kept)
        self._capacity = capacity
