"""Attention over a tree as a few calls of attention over ranges of keys: chains, and the ancestors of chains by level.

A chain is a run of packed tokens of which each is the parent of the next. Unlike a chain of a recurrent layer, it
continues beyond branches. A token sees its chain up to itself, and of every chain above it a piece from that chain's
start. One causal call covers all chains, and one call a level the pieces at one depth, counted in chains from a
root.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastreader.errors import InputError

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
_Entry = tuple[int, int, int, int]  # queries first:stop, keys start:stop


@dataclass(frozen=True, eq=False)
class CascadeCall:
    """Attention of stretches of queries, each to one range of keys.

    Attributes:
        entries: int64 [n, 4], first query, one past the last, first key, one past the last; queries ascend.
        causal: whether query i of an entry sees keys up to the i-th only; else it sees all of the entry.
    """

    entries: Int64
    causal: bool

    @property
    def rows(self) -> Int64:
        """Return the queries, int64 [N]."""
        return _ranges(self.entries[:, 0], self.entries[:, 1])

    @property
    def keys(self) -> Int64:
        """Return the keys, int64 [M], with repeats if entries share them."""
        return _ranges(self.entries[:, 2], self.entries[:, 3])

    @property
    def bounds(self) -> tuple[Int32, Int32]:
        """Return where the queries and the keys of each entry begin among `rows` and `keys`, int32 [n + 1] each."""
        lengths = self.entries[:, 1::2] - self.entries[:, ::2]
        both = np.concatenate([np.zeros((1, 2), dtype=np.int64), np.cumsum(lengths, axis=0)]).astype(np.int32)
        return both[:, 0], both[:, 1]


def cascade(subtree_end: Int32, query_node: Int64) -> list[CascadeCall]:
    """Return the calls whose states merge to attention over a tree.

    Args:
        subtree_end: int32 [Tk], as in `PrefixTree`.
        query_node: int64 [Tq], the key whose visible keys each query sees.

    Raises:
        InputError: if `subtree_end` is not of a tree in depth-first order.
    """
    count = len(subtree_end)
    if not (subtree_end > np.arange(count)).all():
        raise InputError("tree_attention: subtree_end must be of a tree, in which each key sees itself")
    starts = np.flatnonzero(np.concatenate([[True], subtree_end[:-1] <= np.arange(1, count)])) if count else np.zeros(0)
    starts = starts.astype(np.int64)
    stops = np.append(starts[1:], count).astype(np.int64)
    chain_of = np.repeat(np.arange(len(starts)), stops - starts)
    above = _pieces(subtree_end, starts.tolist(), stops.tolist())
    if np.array_equal(query_node, np.arange(count)):
        own = CascadeCall(np.stack([starts, stops, starts, stops], axis=1), True)
        groups = list(zip(starts.tolist(), stops.tolist(), range(len(starts)), strict=True))
    else:
        begin = starts[chain_of[query_node]]
        index = np.arange(len(query_node))
        own = CascadeCall(np.stack([index, index + 1, begin, query_node + 1], axis=1), False)
        edges = np.flatnonzero(np.diff(chain_of[query_node], prepend=-1, append=-1)).tolist()
        groups = [(a, b, int(chain_of[query_node[a]])) for a, b in itertools.pairwise(edges)]
    levels: list[list[_Entry]] = []
    for first, stop, chain in groups:
        for level, (start, end) in enumerate(above[chain]):
            if level == len(levels):
                levels.append([])
            entries = levels[level]
            if entries and entries[-1][1:] == (first, start, end):  # neighbours that see the same keys
                entries[-1] = (entries[-1][0], stop, start, end)
            else:
                entries.append((first, stop, start, end))
    return (
        [own, *(CascadeCall(np.array(entries, dtype=np.int64), False) for entries in levels)] if len(query_node) else []
    )


def _pieces(subtree_end: Int32, starts: list[int], stops: list[int]) -> list[list[tuple[int, int]]]:
    """Return for each chain the ranges of keys that it sees of the chains above it, from the root down."""
    found: list[list[tuple[int, int]]] = []
    last: list[int] = []  # the chain above each chain, or -1
    for chain, start in enumerate(starts):
        above = chain - 1
        seen = 0
        while above >= 0:
            # Along a chain subtrees shrink, so that those which hold this one come first.
            ends = subtree_end[starts[above] : stops[above]]
            seen = int(np.searchsorted(-ends, -start))
            if seen:
                break
            above = last[above]
        last.append(above)
        found.append([] if above < 0 else [*found[above], (starts[above], starts[above] + seen)])
    return found


def _ranges(first: Int64, stop: Int64) -> Int64:
    lengths = stop - first
    offsets = np.repeat(first - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    result: Int64 = offsets + np.arange(len(offsets))
    return result
