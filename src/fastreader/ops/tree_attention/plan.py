"""AttentionPlan, the tables of a tree that attention derives once, and AttentionContext, one call of the op."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.core.lazy import cached_property
from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops import extension
from fastreader.ops.tree_attention.cascade import CascadeCall, cascade
from fastreader.ops.tree_attention.schedule import Queries, Runs, Schedule, key_blocks, limited, tile_bounds
from fastreader.ops.tree_attention.slots import Slots, slot_blocks

_TILE = 256  # at most this many query rows, which bounds the mask and score buffers at a tile x its keys
_DROP = 64  # a tile ends where at least this many keys fall out of sight, to drop them
Positions = TypeVar("Positions", npt.NDArray[np.int32], Tensor)


def chunk_ends(positions: Positions, chunk: int) -> Positions:
    """Return the last position of each position's chunk.

    From there a window of `chunk` tokens begins where the chunk does: a key before the query is within the window
    exactly if ``key_position // chunk == query_position // chunk``.
    """
    return positions // chunk * chunk + (chunk - 1)


class AttentionPlan:
    """The structure of one tree for `tree_attention`, with derived tables, which are made on first use.

    Args:
        subtree_end: int32 [Tk], one past the last descendant of each key.
        query_node: int64 [Tq], the key whose visible keys each query sees; i for query i when None.
        query_positions: int32 [Tq], depth of each query; needed for schedules with a window.
        key_positions: int32 [Tk], depth of each key; needed for schedules with a window.
    """

    def __init__(
        self,
        subtree_end: npt.NDArray[np.int32],
        query_node: npt.NDArray[np.int64] | None = None,
        query_positions: npt.NDArray[np.int32] | None = None,
        key_positions: npt.NDArray[np.int32] | None = None,
    ) -> None:
        self.subtree_end = subtree_end
        self.query_node = np.arange(len(subtree_end), dtype=np.int64) if query_node is None else query_node
        self.query_positions = query_positions
        self.key_positions = key_positions
        self.memo: dict[Any, Any] = {}  # what an implementation derives for calls of one kind, which all layers make
        self._schedules: dict[tuple[int | None, ...], Schedule] = {}
        self._chunked: dict[int, AttentionPlan] = {}

    @cached_property
    def tiles(self) -> Tiles:
        """Return stretches of queries and the keys that each can see, for the PyTorch path."""
        return cut_tiles(self.subtree_end, self.query_node)

    @cached_property
    def cascade(self) -> list[CascadeCall]:
        """Return the calls over ranges of keys that make up attention over the tree, see `cascade.cascade`."""
        return cascade(self.subtree_end, self.query_node)

    @cached_property
    def slots(self) -> Slots:
        """Return where the C++ kernels keep the keys.

        Raises:
            InputError: if `subtree_end` is not of a tree in depth-first order.
            UnsupportedImplementationError: if the C++ extension is missing.
        """
        if (missing := extension.why_missing()) is not None:
            raise UnsupportedImplementationError(f"tree_attention: {missing}")
        try:
            tensors = torch.ops.fastreader.tree_slots(torch.from_numpy(np.ascontiguousarray(self.subtree_end)))
        except ValueError as error:
            raise InputError(str(error).splitlines()[0]) from error
        key, birth, end, chunks = map(Tensor.numpy, tensors)
        return Slots(key, birth, end, chunks, tuple(tensors))

    def chunked(self, chunk: int) -> AttentionPlan:
        """Return the plan for queries that see only keys of their chunk, as a window from `chunk_ends`, made once.

        Raises:
            InputError: if the plan was made without positions.
        """
        if self.query_positions is None:
            raise InputError("AttentionPlan.chunked: a chunk needs query_positions and key_positions, got None")
        if chunk not in self._chunked:
            ends = chunk_ends(self.query_positions, chunk)
            self._chunked[chunk] = AttentionPlan(self.subtree_end, self.query_node, ends, self.key_positions)
        return self._chunked[chunk]

    def schedule(self, window: int | None, query_block: int, key_block: int, key_align: int | None = 1) -> Schedule:
        """Return the block schedule of this tree for tiles of one size, made once.

        That of the C++ kernels has runs of slots as blocks: whole chunks, of one segment.

        Args:
            window: a key is visible only if query_position - key_position < window (tokens); None for no window.
            query_block: at most this many tokens in a tile.
            key_block: at most this many keys in a block, a multiple of `key_align`; or slots, a multiple of 32.
            key_align: cuts inside a visible range fall on multiples of this (for operands packed in groups of keys);
                None for the schedule of the C++ kernels.

        Returns:
            The schedule; tiles cover all queries in order.

        Raises:
            InputError: if there is a window and the plan was made without positions; and as `slots`.
        """
        key = window, query_block, key_block, key_align
        if (known := self._schedules.get(key)) is not None:
            return known
        if window is not None and (self.query_positions is None or self.key_positions is None):
            raise InputError("AttentionPlan.schedule: a window needs query_positions and key_positions, got None")
        ends, nodes = self.subtree_end.astype(np.int64), self.query_node.astype(np.int64)
        bounds = tile_bounds(ends, nodes, query_block, key_block)
        queries, tiles = Queries(nodes, self.query_positions, bounds), len(bounds) - 1
        if key_align is None:
            start, stop, full, owner = slot_blocks(self.slots, queries, self.key_positions, window, key_block)
        else:
            runs = Runs.of(ends, self.key_positions if window is not None else None)
            start, stop, full, owner = key_blocks(runs, queries, window, key_block, key_align)
        pointer = np.zeros(tiles + 1, dtype=np.int32)
        np.cumsum(np.bincount(owner, minlength=tiles), out=pointer[1:])
        up_to_node = np.zeros_like(full)
        if window is None and key_align is not None:
            up_to_node = limited(ends, queries, start, stop, owner)
        self._schedules[key] = Schedule(
            query_block=query_block,
            key_block=key_block,
            tile_start=bounds[:-1].astype(np.int32),
            tile_stop=bounds[1:].astype(np.int32),
            block_ptr=pointer,
            block_start=start.astype(np.int32),
            block_stop=stop.astype(np.int32),
            block_full=full,
            block_limited=up_to_node,
        )
        return self._schedules[key]


@dataclass(frozen=True)
class Tiles:
    """Query rows ``starts[t]:stops[t]`` see no key outside ``keys[t]`` (int64, ascending)."""

    starts: list[int]
    stops: list[int]
    keys: list[npt.NDArray[np.int64]]


def cut_tiles(subtree_end: npt.NDArray[np.int32], query_node: npt.NDArray[np.int64]) -> Tiles:
    """Cut the queries into tiles and list the keys each can see.

    Args:
        subtree_end: int32 [Tk], one past the last descendant of each key.
        query_node: int64 [Tq], the key whose visible keys each query sees.

    Returns:
        Tiles that cover all queries in order.
    """
    bounds = _bounds(subtree_end, query_node)
    keys = [_keys(subtree_end, query_node[start:stop]) for start, stop in itertools.pairwise(bounds)]
    return Tiles(bounds[:-1], bounds[1:], keys)


def _bounds(subtree_end: npt.NDArray[np.int32], nodes: npt.NDArray[np.int64]) -> list[int]:
    count = len(nodes)
    if count == 0:
        return [0]
    alive = np.zeros(len(subtree_end) + 1, dtype=np.int64)  # keys that expire at each index
    np.add.at(alive, np.clip(subtree_end, 0, len(subtree_end)), 1)
    nodes = np.clip(nodes, 0, len(subtree_end))
    expired = np.cumsum(alive)
    moved = np.diff(nodes, prepend=nodes[0])
    dropped = np.where(moved >= 0, expired[nodes] - expired[np.maximum(nodes - moved, 0)], _DROP)
    bounds = [0]
    for row in [*np.flatnonzero(dropped >= _DROP).tolist(), count]:
        while row - bounds[-1] > _TILE:
            bounds.append(bounds[-1] + _TILE)
        if row > bounds[-1]:
            bounds.append(row)
    return bounds


def _keys(subtree_end: npt.NDArray[np.int32], nodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    first, last = int(nodes.min()), int(nodes.max())
    return np.flatnonzero(subtree_end[: last + 1] > first)


@dataclass(frozen=True, eq=False)
class AttentionContext:
    """The checked arguments of one `tree_attention` call.

    Attributes are the arguments, except that `query_node` (int64 [Tq], for Triton int32) and `plan` are always set,
    `sinks` and `slopes` are float32 (float64 for float64 inputs), and a chunk is a window from `chunk_ends`. An
    implementation takes a context and returns (out [Tq, Hq, Dv], lse [Tq, Hq]); lse is undefined unless `return_lse`.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    subtree_end: Tensor
    query_node: Tensor
    query_positions: Tensor | None
    key_positions: Tensor | None
    plan: AttentionPlan
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    slopes: Tensor | None = None
    input_precision: str | None = None
    return_lse: bool = True

    @property
    def groups(self) -> int:
        """Return the number of query heads per key head, at least 1."""
        return max(self.query.shape[1] // max(self.key.shape[1], 1), 1)
