"""DecodeKeys: keys and values of rows that generate one token per step after cached prompts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.core.tree import IntArray, PrefixTree
from fastreader.models.config.windows import Chunk, Window
from fastreader.models.passes.key_values import KeyValues
from fastreader.models.passes.packed_keys import AttentionParams, PackedKeys
from fastreader.models.passes.recurrent_states import PathStates, RecurrentStates
from fastreader.ops.decode_attention import Ranges, decode_attention
from fastreader.ops.decoder_step import StepKeys
from fastreader.ops.extension import why_not as why_not_cpu
from fastreader.ops.merge_state import merge_state

Int32Array = npt.NDArray[np.int32]

_INITIAL_CAPACITY = 16  # new tokens per row; doubled when full, so growing stays cheap
# Mean number of rows per prompt token from which reading it once for all of them pays. On a CPU the two ways took the
# same time at 16 rows of 700 to 1,500 tokens, and at 32 rows of 300.
_MIN_SHARED_ROWS = 12


@dataclass(frozen=True, eq=False)
class Paths:
    """Paths from the root to each row's leaf, as ranges of packed indices, and a last range for generated tokens.

    Attributes:
        row_ptr: int32 [B + 1].
        row: int64 [n], the row of each range.
        start, stop: int32 [n], packed indices.
        depth: int32 [n], position of the first index.
    """

    row_ptr: Int32Array
    row: IntArray
    start: Int32Array
    stop: Int32Array
    depth: Int32Array

    @classmethod
    def empty(cls, rows: int) -> Paths:
        """Return paths without prompts, which are read another way."""
        zeros = np.zeros(rows, dtype=np.int32)
        return cls(np.arange(rows + 1, dtype=np.int32), np.arange(rows), zeros, zeros, zeros)

    @classmethod
    def of(cls, tree: PrefixTree, leaves: IntArray) -> Paths:
        """Return the visible keys of each leaf: those before it whose subtree contains it."""
        distinct, inverse = np.unique(leaves, return_inverse=True)
        paths, sizes = [], []
        for leaf in distinct.tolist():
            seen = np.flatnonzero(tree.subtree_end[: leaf + 1] > leaf)
            first = np.flatnonzero(np.diff(seen, prepend=-2) != 1)
            last = np.append(first[1:], len(seen)) - 1
            # the range of generated tokens follows the prompt's ranges
            paths.append(np.stack([np.append(seen[first], 0), np.append(seen[last] + 1, 0), np.append(first, 0)]))
            sizes.append(len(first) + 1)
        parts = list(map(paths.__getitem__, inverse.tolist()))
        counts = np.array(sizes)[inverse]
        start, stop, depth = np.concatenate(parts, axis=1).astype(np.int32)
        row_ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return cls(row_ptr, np.repeat(np.arange(len(leaves)), counts), start, stop, depth)

    def ranges(
        self,
        new_start: Int32Array,
        new_stop: Int32Array,
        new_position: Int32Array | None = None,
        *,
        origin: Int32Array | None = None,
        oldest: Int32Array | None = None,
    ) -> Ranges:
        """Return these paths, and ``new_start:new_stop`` [B] of the generated tokens.

        Args:
            new_start, new_stop: int32 [B], slots.
            new_position: int32 [B], of the first of these tokens; None for ranges without offsets.
            origin: int32 [B], position from which a row's offsets count; None for 0.
            oldest: int32 [B], position from which a row sees its path; None for 0.
        """
        start, stop, new = self.start.copy(), self.stop.copy(), self.row_ptr[1:] - 1
        start[new], stop[new] = new_start, new_stop
        part = np.zeros(len(start), dtype=np.int32)
        part[new] = 1
        if oldest is not None:
            start += np.clip(oldest[self.row] - self.depth, 0, stop - start) * (1 - part)
        offset = None
        if new_position is not None:
            offset = self.depth + (start - self.start)
            offset[new] = new_position
            offset = offset if origin is None else offset - origin[self.row]
        return Ranges(self.row_ptr, part, start, stop, offset)


def is_shared(tree: PrefixTree, leaves: IntArray) -> bool:
    """Return whether rows from these leaves share their prompts so much that tiles of rows should read them."""
    return float((tree.positions[leaves] + 1).sum()) / len(tree.positions) >= _MIN_SHARED_ROWS


class DecodeKeys:
    """Keys and values of rows that each generate one token per step: their prompts' and their new tokens'.

    The prompts are one packed tree whose keys are cached once, however many rows continue from a leaf. Each row writes
    its new keys to its own slot. Prompts shared by many rows are read by tiles of rows (`tree_attention`), everything
    else row by row in place (`decode_attention`), and the two are merged by their log-sum-exps. If no kernel reads row
    by row, `tree_attention` does both.

    Args:
        tree: the prompts.
        prompt: keys and values of the tree.
        leaves: int64 [B], packed index of the leaf each row continues from; ascending, so rows of one prompt are
            neighbours and share its key blocks.
        max_new_tokens: at most this many tokens are generated per row.
        impl: implementation of tree_attention, "auto" or by name; a named one runs everything.
        row_by_row: read shared prompts row by row too, so that a row's sums do not depend on the other rows.

    Attributes:
        step_positions: int32 [B], position of each row's token in the current step.
        states: the recurrences of the current step, of a model with recurrent layers.
    """

    step_positions: Int32Array
    states: PathStates

    def __init__(
        self,
        tree: PrefixTree,
        prompt: KeyValues,
        leaves: IntArray,
        max_new_tokens: int,
        impl: str = "auto",
        row_by_row: bool = False,
    ) -> None:
        self._row_by_row = row_by_row
        self._tree, self._prompt, self._leaves = tree, prompt, leaves
        self._row_states = None  # of recurrent layers, after each row's last token
        if prompt.states is not None:
            self._row_states = prompt.states.select(np.searchsorted(prompt.states.tokens, leaves))
        self._max_new_tokens, self._impl = max_new_tokens, impl
        self._device = prompt.device
        supported = bool(prompt.keys) and not any(map(why_not_cpu, prompt.keys))
        self._row_kernel = impl == "auto" and supported
        self._generated = KeyValues()  # for each layer [slots * capacity, Hk, D]
        self._slots = np.arange(len(leaves), dtype=np.int64)
        self._slot_count = len(leaves)
        self._first: Int32Array = tree.positions[leaves] + np.int32(1)  # position of each slot's first token
        self._capacity = min(_INITIAL_CAPACITY, max_new_tokens)
        self._steps = 0
        self._plan_prompt()

    @property
    def next_positions(self) -> Int32Array:
        """int32 [B], position of each row's next token."""
        positions: Int32Array = self._first[self._slots] + np.int32(self._steps)
        return positions

    def select(self, rows: IntArray) -> None:
        """Continue with these rows only (indices of the current rows, ascending)."""
        self._slots = self._slots[rows]
        self._leaves = self._leaves[rows]
        if self._row_states is not None:
            self._row_states = self._row_states.select(rows)
        self._plan_prompt()

    def begin_step(self) -> None:
        """Prepare the pass over the next token of every row."""
        if self._steps == self._capacity:
            self._grow()
        self.step_positions = self.next_positions
        new = self._slots * self._capacity + self._steps
        self._new = torch.from_numpy(new).to(self._device)
        self._steps += 1
        if self._row_states is not None:
            rows = np.arange(len(self._slots))
            self.states = PathStates(-2 - rows, self._device, self._row_states, RecurrentStates(rows))
            self._row_states = self.states.kept
        self._ranges: dict[tuple[Window, bool], Ranges] = {}
        if not self._row_kernel:
            self._plan_generated(new)

    def row_keys(self, windows: list[Window]) -> StepKeys | None:
        """Return this step's keys for `decoder_step`, or None if they are not all read row by row.

        Args:
            windows: of each layer.
        """
        if self._tiled or not self._row_kernel:
            return None
        while (layer := len(self._generated.keys)) < len(self._prompt.keys):
            key, value = self._prompt.keys[layer], self._prompt.values[layer]
            self._add_layer(layer, key, value)
        distinct = list(dict.fromkeys(windows))
        return StepKeys(
            self._prompt.keys,
            self._prompt.values,
            self._generated.keys,
            self._generated.values,
            self._new,
            list(map(self._ranges_of, distinct)),
            list(map(distinct.index, windows)),
        )

    def written(self) -> list[Tensor]:
        """Return the keys and then the values that the current step has written, of each layer [B, Hk, D]."""
        return [kept[self._new.to(kept.device)] for kept in (*self._generated.keys, *self._generated.values)]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """Compute attention of one layer for one new token per row, see `AttentionKeys.attend`."""
        if layer == len(self._generated.keys):
            self._add_layer(layer, key, value)
        keys, values = self._generated.keys[layer], self._generated.values[layer]
        new = self._new.to(key.device)  # layers may be on several devices
        keys.index_copy_(0, new, key)
        values.index_copy_(0, new, value)
        states = []
        if self._tiled:
            moves = params.window is not None or params.slopes is not None
            if moves and not np.array_equal(self._planned_positions, self.step_positions):
                self._plan_tiles(self.step_positions)
            # A sink enters once, with the generated tokens.
            unsunk = replace(params, sinks=None)
            states.append(attend(self._prompt_keys, query, self._prompt, layer, unsunk))
        if self._row_kernel:
            states.append(
                decode_attention(
                    query,
                    [self._prompt.keys[layer], keys],
                    [self._prompt.values[layer], values],
                    self._ranges_of(params.window, params.slopes is not None),
                    scale=params.scale,
                    softcap=params.softcap,
                    sinks=params.sinks,
                    slopes=params.slopes,
                )
            )
        else:
            states.append(attend(self._generated_keys, query, self._generated, layer, params))
        out = states[0][0] if len(states) == 1 else merge_state(*states[0], *states[1])[0]
        return out.to(query.dtype)

    def _add_layer(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Make room for the new tokens of a layer with such keys [T, Hk, D] and values [T, Hk, Dv]."""
        slots = self._slot_count * self._capacity
        new_keys, new_values = key.new_zeros(slots, *key.shape[1:]), value.new_zeros(slots, *value.shape[1:])
        self._generated.add_layer(layer, new_keys, new_values)

    def _plan_prompt(self) -> None:
        """Choose how prompts are read until rows leave."""
        self._tiled = not self._row_kernel or (not self._row_by_row and is_shared(self._tree, self._leaves))
        self._paths = Paths.empty(len(self._leaves)) if self._tiled else Paths.of(self._tree, self._leaves)
        if self._tiled:
            self._plan_tiles(self.next_positions)

    def _plan_tiles(self, positions: Int32Array) -> None:
        """Plan tiles over the prompts' keys until rows leave, or for these positions with a window or slopes."""
        tree = self._tree
        self._prompt_keys = PackedKeys(
            tree.subtree_end, self._leaves, positions, tree.positions, self._device, impl=self._impl
        )
        self._planned_positions = positions

    def _plan_generated(self, new: IntArray) -> None:
        """Plan the generated keys as a forest of chains: one chain per slot, the row at its newest key."""
        subtree_end = np.repeat(np.arange(1, self._slot_count + 1, dtype=np.int32) * self._capacity, self._capacity)
        inside = np.tile(np.arange(self._capacity, dtype=np.int32), self._slot_count)
        positions = np.repeat(self._first, self._capacity) + inside
        self._generated_keys = PackedKeys(
            subtree_end, new, self.step_positions, positions, self._device, impl=self._impl
        )

    def _ranges_of(self, window: Window, offsets: bool = False) -> Ranges:
        """Return the keys each row sees with a layer's window: part 0 the prompts, part 1 the generated tokens."""
        if (window, offsets) not in self._ranges:
            oldest = None if window is None else self._oldest(window)
            stop = (self._slots * self._capacity + self._steps).astype(np.int32)
            seen = np.full_like(stop, self._steps)
            if oldest is not None:
                seen = np.minimum(seen, self.step_positions - oldest + np.int32(1))
            at = self.step_positions if offsets else None
            first = None if at is None else at - seen + np.int32(1)
            self._ranges[window, offsets] = self._paths.ranges(stop - seen, stop, first, origin=at, oldest=oldest)
        return self._ranges[window, offsets]

    def _oldest(self, window: int | Chunk) -> Int32Array:
        """Return the lowest position that each row sees, int32 [B]."""
        if isinstance(window, Chunk):
            return self.step_positions // np.int32(window.tokens) * np.int32(window.tokens)
        return self.step_positions - np.int32(window - 1)

    def _grow(self) -> None:
        """Double the capacity of the remaining rows."""
        capacity = min(2 * self._capacity, self._max_new_tokens)
        slots = torch.from_numpy(self._slots)
        for tensors in (self._generated.keys, self._generated.values):
            for layer, old in enumerate(tensors):
                new = old.new_zeros(len(slots), capacity, *old.shape[1:])
                kept = old.view(self._slot_count, self._capacity, *old.shape[1:])[slots.to(old.device)]
                new[:, : self._capacity] = kept
                tensors[layer] = new.view(-1, *old.shape[1:])
        self._first = self._first[self._slots]
        self._slots = np.arange(len(slots), dtype=np.int64)
        self._slot_count, self._capacity = len(slots), capacity


def attend(
    packed: PackedKeys, query: Tensor, cache: KeyValues, layer: int, params: AttentionParams
) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exps of queries over the cached keys of a layer."""
    out, lse = packed.attend(query, cache.keys[layer], cache.values[layer], params, return_lse=True)
    return out.to(lse.dtype), lse  # rounding to bfloat16 before the merge would round twice
