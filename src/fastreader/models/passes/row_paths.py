"""Paths: which keys of their prompts rows see, as ranges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastreader.core.tree import IntArray, PrefixTree
from fastreader.ops.decode_attention import Ranges

Int32Array = npt.NDArray[np.int32]


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
        self, oldest: Int32Array | None, new_start: Int32Array, new_stop: Int32Array, positions: Int32Array | None
    ) -> Ranges:
        """Return these paths from position `oldest` [B] on, and ``new_start:new_stop`` [B] of the generated tokens.

        With the rows' `positions` [B] the ranges have offsets; the last generated token is the row's own.
        """
        start, stop, part, new = self._with_new(new_start, new_stop)
        if oldest is not None:
            start += np.clip(oldest[self.row] - self.depth, 0, stop - start) * (1 - part)
        offset = None
        if positions is not None:
            offset = self.depth + (start - self.start) - positions[self.row]
            offset[new] = new_start - new_stop + 1
        return Ranges(self.row_ptr, part, start, stop, offset)

    def all_ranges(self, new_start: Int32Array, new_stop: Int32Array, new_position: Int32Array) -> Ranges:
        """Return these paths and ``new_start:new_stop`` [B] of the generated tokens, the first at `new_position` [B].

        Offsets count from position 0, for a call with positions.
        """
        start, stop, part, new = self._with_new(new_start, new_stop)
        offset = self.depth.copy()
        offset[new] = new_position
        return Ranges(self.row_ptr, part, start, stop, offset)

    def _with_new(self, new_start: Int32Array, new_stop: Int32Array) -> tuple[Int32Array, ...]:
        """Return start, stop and part of each range, and which ranges are of generated tokens."""
        start, stop, new = self.start.copy(), self.stop.copy(), self.row_ptr[1:] - 1
        start[new], stop[new] = new_start, new_stop
        part = np.zeros(len(start), dtype=np.int32)
        part[new] = 1
        return start, stop, part, new
