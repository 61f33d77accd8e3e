"""The block schedule: which key blocks each tile of queries visits, worked out once a tree for all layers.

Key j is visible to query i exactly when ``j <= query_node[i] < subtree_end[j]``, and with a window also
``query_position[i] - key_position[j] < window``. Keys next to each other with one `subtree_end` are a run; the
queries that see a run are those anchored in ``[first key, subtree_end)``, a contiguous stretch of the sorted query_nodes.
So everything below is a handful of NumPy passes over (tile, run) pairs, of which there are few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_SMALL_DROP = 64  # keys falling out of sight that are never worth a tile of their own


@dataclass(frozen=True, eq=False)
class Schedule:
    """Tiles of queries and, for each, the blocks of keys that any of its queries sees.

    Attributes:
        query_block: tokens a tile holds at most (a kernel packs the grouped heads of a token as rows).
        key_block: keys a block holds at most.
        tile_start, tile_stop: int32 [n], tile t is the queries ``tile_start[t]:tile_stop[t]``.
        block_ptr: int32 [n + 1], tile t visits blocks ``block_ptr[t]:block_ptr[t + 1]``, keys ascending.
        block_start, block_stop: int32 [m], the keys of a block. Blocks begin where a visible range begins,
            not on a fixed grid.
        block_full: bool [m], every key of the block is visible to every query of the tile: no mask needed.
        useful: visible (query, key) pairs, exact.
        skipped: blocks that a dense kernel would have visited besides, on a grid of `key_block` keys.
    """

    query_block: int
    key_block: int
    tile_start: Int32
    tile_stop: Int32
    block_ptr: Int32
    block_start: Int32
    block_stop: Int32
    block_full: Bool
    useful: int
    skipped: int

    @property
    def arrays(self) -> tuple[Int32, Int32, Int32, Int32, Int32, Bool]:
        """The schedule as kernels take it: tile_start, tile_stop, block_ptr, block_start, block_stop, block_full."""
        return self.tile_start, self.tile_stop, self.block_ptr, self.block_start, self.block_stop, self.block_full

    @property
    def visited(self) -> int:
        """Blocks visited."""
        return len(self.block_start)

    @property
    def masked(self) -> int:
        """Blocks visited that need a mask."""
        return self.visited - int(self.block_full.sum())

    @property
    def executed(self) -> int:
        """(query, key) pairs multiplied by a kernel that runs every block at its full size."""
        return self.visited * self.query_block * self.key_block

    @property
    def efficiency(self) -> float:
        """Useful share of the executed pairs, between 0 and 1; 1 when there is nothing to do."""
        return self.useful / self.executed if self.executed else 1.0

    def trimmed_efficiency(self, groups: int, row_multiple: int, key_multiple: int) -> float:
        """The same for a kernel that runs the ends of tiles and blocks only up to a multiple.

        Args:
            groups: query heads a key head, packed as rows.
            row_multiple: rows (tokens x groups) of a tile are padded to a multiple of this.
            key_multiple: a block is widened to multiples of this on both sides.

        Returns:
            Useful share of the executed pairs.
        """
        rows = (self.tile_stop - self.tile_start).astype(np.int64) * groups
        rows = -(-rows // row_multiple) * row_multiple
        first = self.block_start.astype(np.int64) // key_multiple
        last = -(-self.block_stop.astype(np.int64) // key_multiple)
        executed = int((np.repeat(rows, np.diff(self.block_ptr)) * (last - first) * key_multiple).sum())
        return self.useful * groups / executed if executed else 1.0


def make_schedule(
    subtree_end: Int32,
    query_node: npt.NDArray[np.integer],
    query_positions: Int32 | None = None,
    key_positions: Int32 | None = None,
    window: int | None = None,
    *,
    query_block: int,
    key_block: int,
    key_align: int = 1,
) -> Schedule:
    """Cut queries into tiles and list the key blocks each visits.

    Args:
        subtree_end: int32 [Tk], one past the last descendant of each key.
        query_node: integer [Tq], the key in whose place each query stands.
        query_positions: int32 [Tq], needed with a window.
        key_positions: int32 [Tk], needed with a window.
        window: a key is visible only when query_position - key_position < window (tokens); None for no window.
        query_block: tokens a tile holds at most.
        key_block: keys a block holds at most, a multiple of `key_align`.
        key_align: cuts inside a visible range fall on multiples of this (for operands packed in groups of keys).

    Returns:
        The schedule; tiles cover all queries in order.
    """
    ends = subtree_end.astype(np.int64)
    place = query_node.astype(np.int64)
    bounds = tile_bounds(ends, place, query_block, key_block)
    tiles = len(bounds) - 1
    runs = Runs.of(ends, key_positions if window is not None else None)
    pieces = _pieces(runs, place, bounds, query_positions, window)
    starts, stops, full, owner = _blocks(pieces, key_block, key_align)
    pointer = np.zeros(tiles + 1, dtype=np.int32)
    np.cumsum(np.bincount(owner, minlength=tiles), out=pointer[1:])
    return Schedule(
        query_block=query_block,
        key_block=key_block,
        tile_start=bounds[:-1].astype(np.int32),
        tile_stop=bounds[1:].astype(np.int32),
        block_ptr=pointer,
        block_start=starts.astype(np.int32),
        block_stop=stops.astype(np.int32),
        block_full=full,
        useful=useful_pairs(runs, place, query_positions, window),
        skipped=max(tiles * -(-len(subtree_end) // key_block) - len(starts), 0),
    )


@dataclass(frozen=True)
class Runs:
    """Maximal stretches of keys ``first:stop`` with one `subtree_end` and, under a window, consecutive positions."""

    first: Int64
    stop: Int64
    subtree_end: Int64
    position: Int64 | None  # of the first key

    @classmethod
    def of(cls, subtree_end: Int64, key_positions: Int32 | None) -> Runs:
        """The runs of a tree; positions under a window."""
        breaks = np.diff(subtree_end) != 0
        if key_positions is not None:
            breaks |= np.diff(key_positions) != 1
        first = np.concatenate([[0], np.flatnonzero(breaks) + 1]) if len(subtree_end) else np.zeros(0, dtype=np.int64)
        stop = np.concatenate([first[1:], [len(subtree_end)]]) if len(subtree_end) else first
        position = None if key_positions is None else key_positions.astype(np.int64)[first]
        return cls(first, stop, subtree_end[first], position)


@dataclass(frozen=True)
class _Pieces:
    """Keys ``start:stop`` of one run seen by a tile, those ``full_start:full_stop`` by all its queries."""

    tile: Int64
    start: Int64
    stop: Int64
    full_start: Int64
    full_stop: Int64


def tile_bounds(subtree_end: Int64, place: Int64, query_block: int, key_block: int) -> Int64:
    """Tile bounds [n + 1]. Tiles end where more falls out of sight than stays, so as not to carry it along.

    Between two such ends tiles are cut backwards, so that the short one is the first, which sees fewest keys.
    """
    count = len(place)
    if count == 0:
        return np.zeros(1, dtype=np.int64)
    births = np.ones(len(subtree_end) + 1, dtype=np.int64)
    births[-1] = 0
    np.subtract.at(births, np.clip(subtree_end, 0, len(subtree_end)), 1)
    # Keys visible to a query standing at each place, none behind the last: [Tk + 2].
    seen = np.append(np.cumsum(births), 0)
    place = np.clip(place, 0, len(subtree_end))
    low = np.minimum(place[:-1], place[1:])
    high = np.maximum(place[:-1], place[1:])
    # In depth-first order two places share what stays in sight all the way between them.
    spans = np.stack([np.minimum(low + 1, high), high + 1], axis=1).reshape(-1)
    stays = np.minimum.reduceat(seen, spans)[::2] - (low < high) if count > 1 else np.zeros(0, dtype=np.int64)
    dropped = seen[place[:-1]] - stays
    ends = np.flatnonzero(dropped > np.maximum(stays, min(key_block, _SMALL_DROP))) + 1
    ends = np.concatenate([[0], ends, [count]])
    lengths = np.diff(ends)
    tiles = -(-lengths // query_block)
    index = np.arange(tiles.sum()) - np.repeat(np.cumsum(tiles) - tiles, tiles)
    left = np.repeat(tiles, tiles) - index
    starts = np.maximum(np.repeat(ends[1:], tiles) - left * query_block, np.repeat(ends[:-1], tiles))
    return np.concatenate([starts, [count]])


def _pieces(runs: Runs, place: Int64, bounds: Int64, query_positions: Int32 | None, window: int | None) -> _Pieces:
    tile, run, lowest, highest, least, most, all_see = seen_runs(runs, place, bounds, query_positions)
    start = runs.first[run]
    stop = np.minimum(runs.stop[run], highest + 1)
    full_start = start.copy()
    # A query standing before the run sees none of it, one standing inside sees it up to its own place.
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


def seen_runs(
    runs: Runs, place: Int64, bounds: Int64, query_positions: Int32 | None
) -> tuple[Int64, Int64, Int64, Int64, Int64, Int64, Bool]:
    """(tile, run) pairs in which some query sees some key of the run, windows aside.

    Returns:
        tile, run, and over the tile's queries anchored in the run's subtree: lowest and highest place, least and
        greatest position (0 without positions), and whether these are all the queries of the tile.
    """
    positions = np.zeros(len(place), dtype=np.int64) if query_positions is None else query_positions.astype(np.int64)
    sizes = np.diff(bounds)
    ascending = bool((np.diff(place) >= 0).all())
    order = np.arange(len(place)) if ascending else np.argsort(place, kind="stable")
    sorted_place = place[order]
    begin = np.searchsorted(sorted_place, runs.first)
    end = np.maximum(np.searchsorted(sorted_place, runs.subtree_end), begin)
    if ascending:
        # The queries begin:end are contiguous, and so are the tiles they lie in.
        first_tile = np.searchsorted(bounds, begin, side="right") - 1
        last_tile = np.searchsorted(bounds, end, side="left")
        run, offset = expand(np.where(end > begin, last_tile - first_tile, 0))
        tile = first_tile[run] + offset
        low = np.maximum(bounds[tile], begin[run])
        high = np.minimum(bounds[tile + 1], end[run])
        span = np.stack([low, high], axis=1).reshape(-1)
        lowest, highest = place[low], place[high - 1]
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
    lowest, highest = _minimum(place[query], heads), -_minimum(-place[query], heads)
    least, most = _minimum(positions[query], heads), -_minimum(-positions[query], heads)
    return tile[heads], run[heads], lowest, highest, least, most, counts == sizes[tile[heads]]


def expand(counts: Int64) -> tuple[Int64, Int64]:
    """Row i repeated counts[i] times, and 0..counts[i]-1 beside it."""
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)


def _minimum(values: Int64, heads: Int64) -> Int64:
    result: Int64 = np.minimum.reduceat(values, heads) if len(heads) else values
    return result


def _blocks(pieces: _Pieces, key_block: int, key_align: int) -> tuple[Int64, Int64, Bool, Int64]:
    """Join pieces that touch into ranges, cut the ranges into blocks: (start, stop, full, tile), each [m]."""
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
    # Keys that every query sees, counted before each key of the pieces laid end to end: a block is full when
    # this grows by its length.
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


def useful_pairs(runs: Runs, place: Int64, query_positions: Int32 | None, window: int | None) -> int:
    """Visible (query, key) pairs."""
    order = np.argsort(place, kind="stable")
    ascending = place[order]
    begin = np.searchsorted(ascending, runs.first)
    end = np.maximum(np.searchsorted(ascending, runs.subtree_end), begin)
    if window is None:
        inside = np.clip(np.searchsorted(ascending, runs.stop), begin, end)  # those standing on a key of the run
        total = np.concatenate([[0], np.cumsum(ascending)])
        partial = total[inside] - total[begin] - (inside - begin) * (runs.first - 1)
        return int((partial + (end - inside) * (runs.stop - runs.first)).sum())
    assert query_positions is not None and runs.position is not None
    run, offset = expand(end - begin)
    query = order[begin[run] + offset]
    oldest = query_positions.astype(np.int64)[query] - window + 1
    low = runs.first[run] + np.maximum(oldest - runs.position[run], 0)
    high = np.minimum(runs.stop[run], place[query] + 1)
    return int(np.maximum(high - low, 0).sum())
