"""Where the C++ kernels keep the keys of a tree, and which of those places each stretch of queries visits.

Slots come in chunks of 32 that hold the keys of one level (depth / 32) of one path, or of several paths that branch
off near its end; a few keys lie in several slots (csrc/tree_slots.cpp says which and why). A query standing at place
i sees a slot exactly when ``birth <= i < end``, and through these slots every visible key exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops import extension
from fastreader.ops.tree_attention import schema as _schema  # noqa: F401  (defines the op)
from fastreader.ops.tree_attention.schedule import (
    Bool,
    Int32,
    Int64,
    Runs,
    Schedule,
    expand,
    seen_runs,
    tile_bounds,
    useful_pairs,
)

CHUNK = 32  # slots (kStrip in csrc/kernels.h)
SEGMENT = 16  # chunks of a path that are summed apart (kSegment there)


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots of a tree.

    Attributes:
        key: int32 [S], the key in each slot, -1 where empty; S is a multiple of 32.
        birth: int32 [S], first place whose queries see the slot.
        end: int32 [S], one past the last such place.
        chunks: int32 [S / 32, 5], of each chunk its level, first and last birth, first and last end.
    """

    key: Int32
    birth: Int32
    end: Int32
    chunks: Int32

    @classmethod
    def of(cls, subtree_end: Int32) -> Slots:
        """The slots of a tree, from one past the last descendant of each key: int32 [Tk].

        Raises:
            InputError: `subtree_end` is not of a tree in depth-first order.
            UnsupportedImplementationError: the C++ extension is not there.
        """
        if (missing := extension.why_missing()) is not None:
            raise UnsupportedImplementationError(f"tree_attention: {missing}")
        given = torch.from_numpy(np.ascontiguousarray(subtree_end))
        try:
            arrays = torch.ops.fastreader.tree_slots(given)
        except ValueError as error:
            raise InputError(str(error).splitlines()[0]) from error
        return cls(*(array.numpy() for array in arrays))

    @property
    def arrays(self) -> tuple[Int32, Int32, Int32, Int32]:
        """The slots as the kernels take them: key, birth, end, chunks."""
        return self.key, self.birth, self.end, self.chunks


def make_slot_schedule(
    slots: Slots,
    subtree_end: Int32,
    query_node: npt.NDArray[np.integer],
    query_positions: Int32 | None = None,
    key_positions: Int32 | None = None,
    window: int | None = None,
    *,
    query_block: int,
    key_block: int,
) -> Schedule:
    """Cut queries into tiles and list the runs of slots each visits: whole chunks, of one segment.

    Args:
        slots: of the tree.
        subtree_end: int32 [Tk], one past the last descendant of each key.
        query_node: integer [Tq], the key in whose place each query stands.
        query_positions: int32 [Tq], needed with a window.
        key_positions: int32 [Tk], needed with a window.
        window: a key is visible only when query_position - key_position < window (tokens); None for no window.
        query_block: tokens a tile holds at most.
        key_block: slots a block holds at most, a multiple of 32.

    Returns:
        The schedule, its blocks in slots; tiles cover all queries in order.
    """
    ends, place = subtree_end.astype(np.int64), query_node.astype(np.int64)
    bounds = tile_bounds(ends, place, query_block, key_block)
    tiles = len(bounds) - 1
    tile, chunk, full = _seen_chunks(slots, place, bounds, query_positions, key_positions, window)
    start, stop, full, owner = _join(tile, chunk, full, slots.chunks[:, 0], key_block // CHUNK)
    pointer = np.zeros(tiles + 1, dtype=np.int32)
    np.cumsum(np.bincount(owner, minlength=tiles), out=pointer[1:])
    runs = Runs.of(ends, key_positions if window is not None else None)
    return Schedule(
        query_block=query_block,
        key_block=key_block,
        tile_start=bounds[:-1].astype(np.int32),
        tile_stop=bounds[1:].astype(np.int32),
        block_ptr=pointer,
        block_start=(start * CHUNK).astype(np.int32),
        block_stop=(stop * CHUNK).astype(np.int32),
        block_full=full,
        useful=useful_pairs(runs, place, query_positions, window),
        skipped=max(tiles * -(-len(subtree_end) // key_block) - len(start), 0),
    )


def _seen_chunks(
    slots: Slots,
    place: Int64,
    bounds: Int64,
    query_positions: Int32 | None,
    key_positions: Int32 | None,
    window: int | None,
) -> tuple[Int64, Int64, Bool]:
    """(tile, chunk) pairs in which some query may see some slot, in order, and whether all of them see all."""
    _, first_birth, last_birth, first_end, last_end = slots.chunks.astype(np.int64).T
    runs = Runs(first_birth, first_birth, last_end, None)
    tile, chunk, lowest, highest, least, most, all_see = seen_runs(runs, place, bounds, query_positions)
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
    """Join neighbouring chunks of a segment into blocks of at most `most`: (start, stop, full, tile), in chunks."""
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
