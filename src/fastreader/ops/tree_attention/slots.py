"""Slots: where the C++ kernels keep the keys of a tree, and which slots each tile of queries visits.

Slots come in chunks of 32 that hold the keys of one level (depth / 32) of one path, or of several paths that branch
off near its end. A few keys lie in several slots; csrc/tree_slots.cpp explains which and why. A query at node i sees
a slot exactly when ``birth <= i < end``, and through these slots every visible key exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops import extension
from fastreader.ops.tree_attention import schema as _schema  # noqa: F401  (defines the op)
from fastreader.ops.tree_attention.schedule import Bool, Int32, Int64, Runs, expand, seen_runs

CHUNK = 32  # slots (kStrip in csrc/kernels.h)
SEGMENT = 16  # chunks of a path that are summed separately (kSegment there)


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots of a tree.

    Attributes:
        key: int32 [S], the key in each slot, -1 if it is empty; S is a multiple of 32.
        birth: int32 [S], first node whose queries see the slot.
        end: int32 [S], one past the last such node.
        chunks: int32 [S / 32, 5], level, first and last birth, first and last end of each chunk.
    """

    key: Int32
    birth: Int32
    end: Int32
    chunks: Int32

    @classmethod
    def of(cls, subtree_end: Int32) -> Slots:
        """Return the slots of a tree, from one past the last descendant of each key: int32 [Tk].

        Raises:
            InputError: if `subtree_end` is not of a tree in depth-first order.
            UnsupportedImplementationError: if the C++ extension is missing.
        """
        if (missing := extension.why_missing()) is not None:
            raise UnsupportedImplementationError(f"tree_attention: {missing}")
        given = torch.from_numpy(np.ascontiguousarray(subtree_end))
        try:
            arrays = torch.ops.fastreader.tree_slots(given)
        except ValueError as error:
            raise InputError(str(error).splitlines()[0]) from error
        return cls(*(array.numpy() for array in arrays))

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return what the kernels take: key, birth, end, chunks."""
        return tuple(torch.from_numpy(array) for array in (self.key, self.birth, self.end, self.chunks))


def slot_blocks(
    slots: Slots,
    nodes: Int64,
    bounds: Int64,
    query_positions: Int32 | None,
    key_positions: Int32 | None,
    window: int | None,
    key_block: int,
) -> tuple[Int64, Int64, Bool, Int64]:
    """List the blocks of slots that tiles visit, as `AttentionPlan.slot_schedule`: (start, stop, full, tile), [m]."""
    tile, chunk, full = _seen_chunks(slots, nodes, bounds, query_positions, key_positions, window)
    start, stop, full, owner = _join(tile, chunk, full, slots.chunks[:, 0], key_block // CHUNK)
    return start * CHUNK, stop * CHUNK, full, owner


def _seen_chunks(
    slots: Slots,
    nodes: Int64,
    bounds: Int64,
    query_positions: Int32 | None,
    key_positions: Int32 | None,
    window: int | None,
) -> tuple[Int64, Int64, Bool]:
    """List the (tile, chunk) pairs in which some query may see some slot, in order, and whether all see all."""
    _, first_birth, last_birth, first_end, last_end = slots.chunks.astype(np.int64).T
    runs = Runs(first_birth, first_birth, last_end, None)
    tile, chunk, lowest, highest, least, most, all_see = seen_runs(runs, nodes, bounds, query_positions)
    full = all_see & (last_birth[chunk] <= lowest) & (highest < first_end[chunk])
    keep = np.ones(len(tile), dtype=np.bool_)
    if window is not None:
        assert key_positions is not None
        position = np.where(slots.key >= 0, key_positions[slots.key], np.iinfo(np.int32).max).reshape(-1, CHUNK)
        oldest = position.min(axis=1).astype(np.int64)
        newest = np.where(slots.key.reshape(-1, CHUNK) >= 0, position, -1).max(axis=1).astype(np.int64)
        keep = newest[chunk] > least - window
        full &= oldest[chunk] > most - window
    order = np.lexsort((chunk[keep], tile[keep]))
    return tile[keep][order], chunk[keep][order], full[keep][order]


def _join(tile: Int64, chunk: Int64, full: Bool, level: Int32, most: int) -> tuple[Int64, Int64, Bool, Int64]:
    """Join neighbouring chunks of a segment into blocks of at most `most` chunks: (start, stop, full, tile)."""
    if len(tile) == 0:
        return tile, chunk, full, tile
    segment = level[chunk] // SEGMENT
    apart = (np.diff(tile) != 0) | (np.diff(chunk) != 1) | (np.diff(segment) != 0)
    heads = np.concatenate([[0], np.flatnonzero(apart) + 1])
    lengths = np.diff(np.append(heads, len(tile)))
    owner, index = expand(-(-lengths // most))
    first = heads[owner] + index * most
    count = np.minimum(lengths[owner] - index * most, most)
    seen = np.concatenate([[0], np.cumsum(full)])
    return chunk[first], chunk[first] + count, seen[first + count] - seen[first] == count, tile[first]
