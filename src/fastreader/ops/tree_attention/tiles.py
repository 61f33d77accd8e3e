"""The tiles of the PyTorch path: stretches of queries and the keys that each needs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_TILE = 256  # at most this many query rows, which bounds the mask and score buffers at a tile x its keys
_DROP = 64  # a tile ends where at least this many keys fall out of sight, to drop them


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
