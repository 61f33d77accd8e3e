"""The block schedule: which key blocks each tile of queries visits, derived once for each tree and used by all layers.

Key j is visible to query i exactly when ``j <= query_node[i] < subtree_end[j]``, and with a window also
``query_position[i] - key_position[j] < window``. Neighbouring keys with one `subtree_end` are a run. The queries that
see a run are those with a node in ``[first key, subtree_end)``, a contiguous stretch of the sorted nodes. So a
schedule takes a few NumPy passes over (tile, run) pairs, and there are few such pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.core.lazy import cached_property

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_SMALL_DROP = 64  # a tile never ends because so few keys fall out of sight


@dataclass(frozen=True, eq=False)
class Schedule:
    """Tiles of queries and, for each, the blocks of keys that any of its queries sees.

    Attributes:
        query_block: at most this many tokens in a tile (a kernel packs the query heads of a key head as rows).
        key_block: at most this many keys in a block.
        tile_start, tile_stop: int32 [n], tile t is the queries ``tile_start[t]:tile_stop[t]``.
        block_ptr: int32 [n + 1], tile t visits blocks ``block_ptr[t]:block_ptr[t + 1]``, keys ascending.
        block_start, block_stop: int32 [m], the keys of a block. Blocks begin where a visible range begins,
            not on a fixed grid.
        block_full: bool [m], every key of the block is visible to every query of the tile: no mask needed.
        block_limited: bool [m], each query sees the keys of the block up to its own node: no subtree ends before it.
    """

    query_block: int
    key_block: int
    tile_start: Int32
    tile_stop: Int32
    block_ptr: Int32
    block_start: Int32
    block_stop: Int32
    block_full: Bool
    block_limited: Bool

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return what the C++ kernels take: tile_start, tile_stop, block_ptr, block_start, block_stop, block_full."""
        arrays = self.tile_start, self.tile_stop, self.block_ptr, self.block_start, self.block_stop, self.block_full
        return tuple(map(torch.from_numpy, arrays))


@dataclass(frozen=True)
class Runs:
    """Maximal stretches of keys ``first:stop`` with one `subtree_end` and, with a window, consecutive positions."""

    first: Int64
    stop: Int64
    subtree_end: Int64
    position: Int64 | None  # of the first key

    @classmethod
    def of(cls, subtree_end: Int64, key_positions: Int32 | None) -> Runs:
        """Return the runs of a tree, with `key_positions` if there is a window."""
        breaks = np.diff(subtree_end) != 0
        if key_positions is not None:
            breaks |= np.diff(key_positions) != 1
        first = np.concatenate([[0], np.flatnonzero(breaks) + 1]) if len(subtree_end) else np.zeros(0, dtype=np.int64)
        stop = np.concatenate([first[1:], [len(subtree_end)]]) if len(subtree_end) else first
        position = None if key_positions is None else key_positions.astype(np.int64)[first]
        return cls(first, stop, subtree_end[first], position)


@dataclass(frozen=True)
class Queries:
    """Queries cut into tiles.

    Attributes:
        nodes: int64 [Tq], the key whose visible keys each query sees.
        positions: int32 [Tq], depth of each query; None without a window.
        bounds: int64 [n + 1], tile t is the queries ``bounds[t]:bounds[t + 1]``.
    """

    nodes: Int64
    positions: Int32 | None
    bounds: Int64


@dataclass(frozen=True)
class _Pieces:
    """Keys ``start:stop`` of one run that a tile sees, of which all its queries see ``full_start:full_stop``."""

    tile: Int64
    start: Int64
    stop: Int64
    full_start: Int64
    full_stop: Int64


def tile_bounds(subtree_end: Int64, nodes: Int64, query_block: int, key_block: int) -> Int64:
    """Return tile bounds [n + 1]. A tile ends where more keys fall out of sight than stay, to drop them.

    Between two such ends tiles are cut backwards, so that the short one is the first, which sees fewest keys.
    """
    count = len(nodes)
    if count == 0:
        return np.zeros(1, dtype=np.int64)
    births = np.ones(len(subtree_end) + 1, dtype=np.int64)
    births[-1] = 0
    np.subtract.at(births, np.clip(subtree_end, 0, len(subtree_end)), 1)
    # Number of keys visible to a query at each node, 0 behind the last: [Tk + 2].
    seen = np.append(np.cumsum(births), 0)
    nodes = np.clip(nodes, 0, len(subtree_end))
    low = np.minimum(nodes[:-1], nodes[1:])
    high = np.maximum(nodes[:-1], nodes[1:])
    # In depth-first order two nodes share the keys that stay in sight all the way between them.
    spans = np.stack([np.minimum(low + 1, high), high + 1], axis=1).reshape(-1)
    stays = np.minimum.reduceat(seen, spans)[::2] - (low < high) if count > 1 else np.zeros(0, dtype=np.int64)
    dropped = seen[nodes[:-1]] - stays
    ends = np.flatnonzero(dropped > np.maximum(stays, min(key_block, _SMALL_DROP))) + 1
    ends = np.concatenate([[0], ends, [count]])
    lengths = np.diff(ends)
    tiles = -(-lengths // query_block)
    index = np.arange(tiles.sum()) - np.repeat(np.cumsum(tiles) - tiles, tiles)
    left = np.repeat(tiles, tiles) - index
    starts = np.maximum(np.repeat(ends[1:], tiles) - left * query_block, np.repeat(ends[:-1], tiles))
    return np.concatenate([starts, [count]])


def _pieces(runs: Runs, queries: Queries, window: int | None) -> _Pieces:
    tile, run, lowest, highest, least, most, all_see = seen_runs(runs, queries)
    start = runs.first[run]
    stop = np.minimum(runs.stop[run], highest + 1)
    full_start = start.copy()
    # A query before the run sees none of it; a query inside sees it up to its own node.
    full_stop = np.where(all_see, np.minimum(stop, lowest + 1), start)
    if window is not None:
        assert runs.position is not None
        shift = runs.first[run] - runs.position[run] - window + 1  # query position p sees keys from p + shift on
        start = np.clip(least + shift, start, stop)
        full_start = np.clip(most + shift, start, stop)
        full_stop = np.maximum(full_stop, full_start)
    keep = start < stop
    order = np.lexsort((start[keep], tile[keep]))
    return _Pieces(*(a[keep][order] for a in (tile, start, stop, full_start, full_stop)))


def seen_runs(runs: Runs, queries: Queries) -> tuple[Int64, Int64, Int64, Int64, Int64, Int64, Bool]:
    """Find the (tile, run) pairs in which some query sees some key of the run, windows aside.

    Returns:
        tile, run, and over the tile's queries in the run's subtree: lowest and highest node, lowest and highest
        position (0 without positions), and whether they are all queries of the tile.
    """
    nodes, bounds, given = queries.nodes, queries.bounds, queries.positions
    positions = np.zeros(len(nodes), dtype=np.int64) if given is None else given.astype(np.int64)
    sizes = np.diff(bounds)
    ascending = bool((np.diff(nodes) >= 0).all())
    order = np.arange(len(nodes)) if ascending else np.argsort(nodes, kind="stable")
    sorted_nodes = nodes[order]
    begin = np.searchsorted(sorted_nodes, runs.first)
    end = np.maximum(np.searchsorted(sorted_nodes, runs.subtree_end), begin)
    if ascending:
        # The queries begin:end are contiguous, and so are their tiles.
        first_tile = np.searchsorted(bounds, begin, side="right") - 1
        last_tile = np.searchsorted(bounds, end, side="left")
        run, offset = expand(np.where(end > begin, last_tile - first_tile, 0))
        tile = first_tile[run] + offset
        low = np.maximum(bounds[tile], begin[run])
        high = np.minimum(bounds[tile + 1], end[run])
        span = np.stack([low, high], axis=1).reshape(-1)
        lowest, highest = nodes[low], nodes[high - 1]
        least = np.minimum.reduceat(np.append(positions, 0), span)[::2] if len(span) else low
        most = np.maximum.reduceat(np.append(positions, 0), span)[::2] if len(span) else low
        return tile, run, lowest, highest, least, most, high - low == sizes[tile]
    run, offset = expand(end - begin)
    query = order[begin[run] + offset]
    tile = np.searchsorted(bounds, query, side="right") - 1
    by_pair = np.lexsort((run, tile))
    run, query, tile = run[by_pair], query[by_pair], tile[by_pair]
    heads = np.flatnonzero(np.concatenate([[True], (np.diff(run) != 0) | (np.diff(tile) != 0)])) if len(run) else run
    counts = np.diff(np.append(heads, len(run)))
    lowest, highest = _minimum(nodes[query], heads), -_minimum(-nodes[query], heads)
    least, most = _minimum(positions[query], heads), -_minimum(-positions[query], heads)
    return tile[heads], run[heads], lowest, highest, least, most, counts == sizes[tile[heads]]


def limited(subtree_end: Int64, queries: Queries, start: Int64, stop: Int64, owner: Int64) -> Bool:
    """Return for each block whether the subtrees of all its keys reach beyond all queries of its tile, bool [m].

    Args:
        subtree_end: int64 [Tk], one past the last descendant of each key.
        queries: in tiles.
        start, stop, owner: int64 [m], keys and tile of each block.
    """
    if not len(start):
        return np.zeros(0, dtype=np.bool_)
    ends = np.minimum.reduceat(np.append(subtree_end, 0), np.stack([start, stop], axis=1).reshape(-1))[::2]
    highest = np.maximum.reduceat(queries.nodes, queries.bounds[:-1])
    result: Bool = ends > highest[owner]
    return result


def expand(counts: Int64) -> tuple[Int64, Int64]:
    """Return row i repeated counts[i] times, and the index of each repetition, 0 to counts[i] - 1."""
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)


def _minimum(values: Int64, heads: Int64) -> Int64:
    result: Int64 = np.minimum.reduceat(values, heads) if len(heads) else values
    return result


def key_blocks(
    runs: Runs, queries: Queries, window: int | None, key_block: int, key_align: int
) -> tuple[Int64, Int64, Bool, Int64]:
    """List the blocks of keys that tiles visit, as `AttentionPlan.schedule`: (start, stop, full, tile), each [m].

    Pieces that touch are joined into ranges, and the ranges cut into blocks.
    """
    pieces = _pieces(runs, queries, window)
    if len(pieces.tile) == 0:
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing, np.zeros(0, dtype=np.bool_), nothing
    apart = (np.diff(pieces.tile) != 0) | (pieces.start[1:] != pieces.stop[:-1])
    heads = np.concatenate([[0], np.flatnonzero(apart) + 1])
    tails = np.append(heads[1:], len(pieces.tile)) - 1
    range_start, range_stop = pieces.start[heads], pieces.stop[tails]
    grid = range_start // key_align * key_align
    owner, index = expand(-(-(range_stop - grid) // key_block))
    start = np.maximum(grid[owner] + index * key_block, range_start[owner])
    stop = np.minimum(grid[owner] + (index + 1) * key_block, range_stop[owner])
    # Count the keys that every query sees before each key of the pieces laid end to end: a block is full if the
    # count grows by its length.
    offset = np.cumsum(pieces.stop - pieces.start) - (pieces.stop - pieces.start)
    full_length = pieces.full_stop - pieces.full_start
    before = np.cumsum(full_length) - full_length

    def full_keys(at: Int64) -> Int64:
        piece = np.searchsorted(offset, at, side="right") - 1
        inside = at - offset[piece] - (pieces.full_start - pieces.start)[piece]
        counted: Int64 = before[piece] + np.clip(inside, 0, full_length[piece])
        return counted

    laid = offset[heads][owner] + start - range_start[owner]
    full = full_keys(laid + stop - start) - full_keys(laid) == stop - start
    return start, stop, full, pieces.tile[heads][owner]
