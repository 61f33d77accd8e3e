"""RowKeys: keys and values for generation on a GPU, where a step needs no data from the host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fastreader.core.tree import IntArray, PrefixTree
from fastreader.models.config.windows import Chunk
from fastreader.models.passes.decode_keys import Paths, attend, is_shared
from fastreader.models.passes.key_values import KeyValues
from fastreader.models.passes.packed_keys import AttentionParams, PackedKeys, PassTables, Shapes
from fastreader.ops.decode_attention import Ranges, decode_attention, why_not_triton
from fastreader.ops.merge_state import merge_state
from fastreader.ops.upload import Upload

FINISHED = -1  # the position of a row that sees nothing any more


class RowKeys:
    """Keys and values of rows that each generate one token per step: their prompts' and their new tokens'.

    As `DecodeKeys`, with the rows' positions on the device and room for all new tokens, so that every step makes the
    same launches on the same memory.

    Args:
        tree: the prompts.
        prompt: keys and values of the tree.
        leaves: int64 [B], packed index of the leaf that each row continues from, ascending.
        max_new_tokens: at most this many steps follow.

    Attributes:
        positions: int32 [B] on the device, position of each row's token, or `FINISHED`.
    """

    def __init__(self, tree: PrefixTree, prompt: KeyValues, leaves: IntArray, max_new_tokens: int) -> None:
        self._tree, self._prompt, self._leaves = tree, prompt, leaves
        self._capacity = max_new_tokens
        self._generated = KeyValues()  # for each layer [slots * capacity, Hk, D]
        self._shapes: Shapes = {}
        self._slots = np.arange(len(leaves), dtype=np.int64)
        self._slot_count = len(leaves)
        upload = Upload(prompt.device)
        positions, places = upload.add(self._first()), upload.add(self._slots * self._capacity)
        self._plan(upload)
        # Copies, since they change, and arrays on the CPU are shared.
        self.positions, self._places = positions.get().clone(), places.get().clone()

    def _first(self) -> npt.NDArray[np.int32]:
        return self._tree.positions[self._leaves] + np.int32(1)

    def _plan(self, upload: Upload) -> None:
        """Lay out what each row sees until rows leave."""
        start = (self._slots * self._capacity).astype(np.int32)
        new = start, start + np.int32(self._capacity), self._first()
        lengths = [len(self._prompt), self._slot_count * self._capacity]
        self._ranges = Paths.of(self._tree, self._leaves).ranges(*new)
        self._ranges.tensors(len(start), lengths, self._prompt.device)
        self._own: Ranges | None = None
        if is_shared(self._tree, self._leaves):
            self._own = Paths.empty(len(self._leaves)).ranges(*new)
            self._own.tensors(len(start), lengths, self._prompt.device)
            tree, tables = self._tree, PassTables(self._prompt.device, self._shapes, upload)
            self._tiles = PackedKeys(
                tree.subtree_end,
                self._leaves,
                tree.positions[self._leaves],
                tree.positions,
                self._prompt.device,
                tables=tables,
            )
        upload.send()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """Compute attention of one layer for one new token per row, see `AttentionKeys.attend`."""
        if layer == len(self._generated.keys):
            slots = self._slot_count * self._capacity
            self._generated.add_layer(layer, *(x.new_empty(slots, *x.shape[1:]) for x in (key, value)))
        keys, values = self._generated.keys[layer], self._generated.values[layer]
        keys.index_copy_(0, self._places, key)
        values.index_copy_(0, self._places, value)
        chunk = params.window.tokens if isinstance(params.window, Chunk) else None
        window = None if isinstance(params.window, Chunk) else params.window
        # Tiles are planned once for all steps, so they serve layers in which nothing depends on positions.
        tiled = self._own is not None and params.window is None and params.slopes is None
        own = decode_attention(
            query,
            [self._prompt.keys[layer], keys],
            [self._prompt.values[layer], values],
            self._own if tiled and self._own is not None else self._ranges,
            scale=params.scale,
            softcap=params.softcap,
            sinks=params.sinks,
            slopes=params.slopes,
            positions=self.positions,
            window=window,
            chunk=chunk,
        )
        if not tiled:
            return own[0].to(query.dtype)
        # A sink enters once, with the generated tokens.
        shared = attend(self._tiles, query, self._prompt, layer, replace(params, sinks=None))
        return merge_state(*own, *shared)[0].to(query.dtype)

    def advance(self, finished: Tensor) -> None:
        """Move on to the next token of every row but those in `finished`, bool [B]."""
        self._places += 1
        self.positions.add_(1).masked_fill_(finished, FINISHED)

    def select(self, rows: IntArray, on_device: Tensor) -> None:
        """Continue with these rows only (indices of the current rows, ascending), on the host and on the device."""
        self._slots, self._leaves = self._slots[rows], self._leaves[rows]
        self.positions, self._places = self.positions[on_device], self._places[on_device]
        self._plan(Upload(self._prompt.device))


def why_not(prompt: KeyValues) -> str | None:
    """Return why no kernel reads these keys and values row by row on their GPU, or None if one does."""
    for key, value in zip(prompt.keys, prompt.values, strict=True):
        reason = why_not_triton(key, [key], [value])
        if reason is not None:
            return reason
    return None
