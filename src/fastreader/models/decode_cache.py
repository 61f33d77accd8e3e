"""RowKeys: rows that each write one token a step, over the kept keys of their prompts and those they wrote."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.core.tree import IntArray, PrefixTree
from fastreader.models.attention_keys import Scores
from fastreader.models.key_values import KeyValues
from fastreader.ops.decode_attention import Ranges, decode_attention
from fastreader.ops.extension import why_not as why_not_cpu
from fastreader.ops.merge_state import merge_state
from fastreader.ops.tree_attention import AttentionPlan, tree_attention

Int32Array = npt.NDArray[np.int32]

_FIRST_ROOM = 16  # new tokens a row has room for at first; doubled when full, so that growing costs little
_SHARED = 12  # rows a prompt token serves on average, from which on reading it once for all of them pays: the two
# ways took the same time at 16 rows of 700 to 1,500 tokens, and at 32 of 300


class RowKeys:
    """Rows that each write one token a step: their prompts' kept keys, and those of the tokens they wrote.

    The prompts are one packed tree, its keys kept once however many rows go on from a leaf. What a row wrote lies
    in a slot of its own. Prompts shared by many rows are read by tiles of rows (`tree_attention`), all else row by
    row where it lies (`decode_attention`), and the two are joined by their log-sum-exps. Where no kernel reads row by
    row, `tree_attention` does both.

    Args:
        tree: the prompts.
        prompt: keys and values of the tree.
        leaves: int64 [B], packed index each row goes on from; ascending, so that rows of one prompt are
            neighbours and share its key blocks.
        room: new tokens a row may write at most.
        windowed: whether any layer has a sliding window.
        impl: implementation of tree_attention, "auto" or by name; by name it is used for all.

    Attributes:
        place: int32 [B], position of each row's token of the pass now begun.
    """

    place: Int32Array

    def __init__(
        self, tree: PrefixTree, prompt: KeyValues, leaves: IntArray, room: int, windowed: bool, impl: str = "auto"
    ) -> None:
        self._tree, self._prompt, self._leaves = tree, prompt, leaves
        self._room, self._windowed, self._impl = room, windowed, impl
        self._device = prompt.keys[0].device
        self._by_row = impl == "auto" and why_not_cpu(prompt.keys[0]) is None
        self._written = KeyValues.empty()  # for each layer [slots * capacity, Hk, D]
        self._slots = np.arange(len(leaves), dtype=np.int64)
        self._slot_count = len(leaves)
        self._first: Int32Array = tree.positions[leaves] + np.int32(1)  # position of each slot's first token
        self._capacity = min(_FIRST_ROOM, room)
        self._steps = 0
        self._prompt_subtree_end = torch.from_numpy(tree.subtree_end).to(self._device)
        self._prompt_positions = torch.from_numpy(tree.positions).to(self._device)
        self._plan_prompt()

    @property
    def positions(self) -> Int32Array:
        """int32 [B], position of each row's next token."""
        positions: Int32Array = self._first[self._slots] + np.int32(self._steps)
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
        self.place = self.positions
        self._positions = torch.from_numpy(self.place).to(self._device)
        if self._windowed and self._steps and self._tiled:
            self._plan_tiles()
        own = self._slots * self._capacity + self._steps
        self._own = torch.from_numpy(own).to(self._device)
        self._steps += 1
        self._ranges: dict[int | None, Ranges] = {}
        if not self._by_row:
            self._plan_own(own)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """As `Keys.attend`, one new token a row."""
        if layer == len(self._written.keys):
            shape = self._slot_count * self._capacity, key.shape[1]
            self._written.put(layer, key.new_zeros(*shape, key.shape[2]), value.new_zeros(*shape, value.shape[2]))
        keys, values = self._written.keys[layer], self._written.values[layer]
        keys.index_copy_(0, self._own, key)
        values.index_copy_(0, self._own, value)
        states = []
        if self._tiled:
            states.append(self._tree_attention(query, self._prompt, layer, scores, self._prompt_plan))
        if self._by_row:
            states.append(
                decode_attention(
                    query,
                    [self._prompt.keys[layer], keys],
                    [self._prompt.values[layer], values],
                    self._ranges_of(scores.window),
                    scale=scores.scale,
                    softcap=scores.softcap,
                )
            )
        else:
            states.append(self._tree_attention(query, self._written, layer, scores, self._own_plan))
        out = states[0][0] if len(states) == 1 else merge_state(*states[0], *states[1])[0]
        return out.to(query.dtype)

    def _tree_attention(
        self, query: Tensor, kept: KeyValues, layer: int, scores: Scores, plan: _Tiles
    ) -> tuple[Tensor, Tensor]:
        out, lse = tree_attention(
            query,
            kept.keys[layer],
            kept.values[layer],
            plan.subtree_end,
            query_node=plan.query_node,
            query_positions=self._positions,
            key_positions=plan.key_positions,
            scale=scores.scale,
            window=scores.window,
            softcap=scores.softcap,
            input_precision=scores.input_precision,
            return_lse=True,
            plan=plan.plan,
            impl=self._impl,
        )
        # Parts rounded to bfloat16 before they are joined would be rounded twice.
        return out.to(lse.dtype), lse

    def _plan_prompt(self) -> None:
        """How the prompts are read, as long as no row leaves."""
        shared = float((self._tree.positions[self._leaves] + 1).sum()) / len(self._tree)
        self._tiled = not self._by_row or shared >= _SHARED
        self._paths = _Paths.none(len(self._leaves)) if self._tiled else _Paths.of(self._tree, self._leaves)
        if self._tiled:
            self._plan_tiles()

    def _plan_tiles(self) -> None:
        """The prompts' keys stay where they are, so this holds until rows leave, or a window moves on."""
        plan = AttentionPlan(self._tree.subtree_end, self._leaves, self.positions, self._tree.positions)
        query_node = torch.from_numpy(self._leaves).to(self._device)
        self._prompt_plan = _Tiles(plan, self._prompt_subtree_end, query_node, self._prompt_positions)

    def _plan_own(self, own: IntArray) -> None:
        """What rows wrote, as a forest of chains: a slot's keys are one, the row stands on the newest."""
        subtree_end = np.repeat(np.arange(1, self._slot_count + 1, dtype=np.int32) * self._capacity, self._capacity)
        inside = np.tile(np.arange(self._capacity, dtype=np.int32), self._slot_count)
        positions = np.repeat(self._first, self._capacity) + inside
        self._own_plan = _Tiles(
            AttentionPlan(subtree_end, own, self.place, positions),
            torch.from_numpy(subtree_end).to(self._device),
            self._own,
            torch.from_numpy(positions).to(self._device),
        )

    def _ranges_of(self, window: int | None) -> Ranges:
        """What each row sees under a layer's window: part 0 the prompts, part 1 what was written."""
        if window not in self._ranges:
            oldest = None if window is None else self.place - np.int32(window - 1)
            stop = (self._slots * self._capacity + self._steps).astype(np.int32)
            seen = self._steps if window is None else min(self._steps, window)
            self._ranges[window] = self._paths.ranges(oldest, stop - np.int32(seen), stop)
        return self._ranges[window]

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


@dataclass(frozen=True, eq=False)
class _Tiles:
    """Kept keys as `tree_attention` takes them."""

    plan: AttentionPlan
    subtree_end: Tensor
    query_node: Tensor
    key_positions: Tensor


@dataclass(frozen=True, eq=False)
class _Paths:
    """From the root to each row's leaf, as stretches of packed indices; a stretch for what it wrote stands last.

    Attributes:
        row_ptr: int32 [B + 1].
        row: int64 [n], whose stretch it is.
        start, stop: int32 [n], packed indices.
        depth: int32 [n], position of the first.
    """

    row_ptr: Int32Array
    row: IntArray
    start: Int32Array
    stop: Int32Array
    depth: Int32Array

    @classmethod
    def none(cls, rows: int) -> _Paths:
        """Of rows whose prompts are read otherwise."""
        zeros = np.zeros(rows, dtype=np.int32)
        return cls(np.arange(rows + 1, dtype=np.int32), np.arange(rows), zeros, zeros, zeros)

    @classmethod
    def of(cls, tree: PrefixTree, leaves: IntArray) -> _Paths:
        """The visible keys of each leaf: those before it whose subtree it is in."""
        distinct, which = np.unique(leaves, return_inverse=True)
        found = []
        for leaf in distinct.tolist():
            seen = np.flatnonzero(tree.subtree_end[: leaf + 1] > leaf)
            first = np.flatnonzero(np.diff(seen, prepend=-2) != 1)
            last = np.append(first[1:], len(seen)) - 1
            # a stretch of what the row wrote follows those of its prompt
            found.append(np.stack([np.append(seen[first], 0), np.append(seen[last] + 1, 0), np.append(first, 0)]))
        parts = [found[w] for w in which.tolist()]
        counts = np.array([part.shape[1] for part in parts])
        start, stop, depth = np.concatenate(parts, axis=1).astype(np.int32)
        row_ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return cls(row_ptr, np.repeat(np.arange(len(leaves)), counts), start, stop, depth)

    def ranges(self, oldest: Int32Array | None, own_start: Int32Array, own_stop: Int32Array) -> Ranges:
        """These paths, from position `oldest` [B] on, and ``own_start:own_stop`` [B] of what was written."""
        start, stop = self.start.copy(), self.stop.copy()
        if oldest is not None:
            start += np.clip(oldest[self.row] - self.depth, 0, stop - start)
        own = self.row_ptr[1:] - 1
        start[own], stop[own] = own_start, own_stop
        part = np.zeros(len(start), dtype=np.int32)
        part[own] = 1
        return Ranges(self.row_ptr, part, start, stop)
