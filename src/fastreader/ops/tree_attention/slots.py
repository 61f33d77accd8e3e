"""Slots: where the C++ kernels keep the keys of a tree, and which slots each tile of queries visits.

Slots come in chunks of 32 that hold the keys of one level (depth / 32) of one path, or of several paths that branch
off near its end. A few keys are in several slots, as csrc/tree_slots.cpp explains. A query at node i sees
a slot exactly when ``birth <= i < end``, and through these slots every visible key exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastreader.ops.extension import define
from fastreader.ops.tree_attention.schedule import Bool, Int32, Int64, Queries, Runs, expand, seen_runs

CHUNK = 32  # slots (kStrip in csrc/kernels.h)
SEGMENT = 16  # chunks of a path that are summed separately (kSegment there)


@define("tree_slots(Tensor subtree_end) -> (Tensor, Tensor, Tensor, Tensor)")
def _slots(subtree_end: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    chunks = torch.library.get_ctx().new_dynamic_size()
    key, birth, end = (subtree_end.new_empty(32 * chunks) for _ in range(3))
    return key, birth, end, subtree_end.new_empty((chunks, 5))


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots of a tree.

    Attributes:
        key: int32 [S], the key in each slot, -1 if it is empty; S is a multiple of 32.
        birth: int32 [S], first node whose queries see the slot.
        end: int32 [S], one past the last such node.
        chunks: int32 [S / 32, 5], level, first and last birth, first and last end of each chunk.
        tensors: the four as the kernels take them.
    """

    key: Int32
    birth: Int32
    end: Int32
    chunks: Int32
    tensors: tuple[Tensor, ...]


def slot_blocks(
    slots: Slots, queries: Queries, key_positions: Int32 | None, window: int | None, key_block: int
) -> tuple[Int64, Int64, Bool, Int64]:
    """List the blocks of slots that tiles visit, as `AttentionPlan.schedule`: (start, stop, full, tile), [m]."""
    _, first_birth, last_birth, first_end, last_end = slots.chunks.astype(np.int64).T
    runs = Runs(first_birth, first_birth, last_end, None)
    tile, chunk, lowest, highest, least, most, all_see = seen_runs(runs, queries)
    full = all_see & (last_birth[chunk] <= lowest) & (highest < first_end[chunk])
    if window is not None:
        assert key_positions is not None
        position = np.where(slots.key >= 0, key_positions[slots.key], np.iinfo(np.int32).max).reshape(-1, CHUNK)
        oldest = position.min(axis=1).astype(np.int64)
        newest = np.where(slots.key.reshape(-1, CHUNK) >= 0, position, -1).max(axis=1).astype(np.int64)
        keep = newest[chunk] > least - window
        full &= oldest[chunk] > most - window
        tile, chunk, full = tile[keep], chunk[keep], full[keep]
    if len(tile) == 0:
        return tile, chunk, full, tile
    order = np.lexsort((chunk, tile))
    tile, chunk, full = tile[order], chunk[order], full[order]
    # Join neighbouring chunks of a segment into blocks of at most `length` chunks.
    length = key_block // CHUNK
    segment = slots.chunks[chunk, 0] // SEGMENT
    apart = (np.diff(tile) != 0) | (np.diff(chunk) != 1) | (np.diff(segment) != 0)
    heads = np.concatenate([[0], np.flatnonzero(apart) + 1])
    lengths = np.diff(np.append(heads, len(tile)))
    owner, index = expand(-(-lengths // length))
    first = heads[owner] + index * length
    count = np.minimum(lengths[owner] - index * length, length)
    seen = np.concatenate([[0], np.cumsum(full)])
    all_full = seen[first + count] - seen[first] == count
    return chunk[first] * CHUNK, (chunk[first] + count) * CHUNK, all_full, tile[first]
