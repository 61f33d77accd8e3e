"""Chains: runs of tokens of a packed tree that a recurrent layer scans in one piece, and the order to scan them in.

The state of a recurrent layer is a function of a token's path. A chain is a run of tokens of which each follows the one
before it and no other token does, so only the state at its end is needed by others. A chain that follows another one
starts from the state at its end and is one level deeper. Chains of a level do not depend on each other.

`Walks` are tables for kernels of which a program follows a whole chain, chunk by chunk or token by token.
`ScanPlan.levels` cuts chains into chunks so that one batch computes many of them. A program that keeps the state of its
chain needs no cut inside of it, so a level of walks is a level of whole chains, and a tree has few of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.core.checks import check_int, expect
from fastreader.ops.upload import Upload

IntArray = npt.NDArray[np.int64]
COLUMNS = 5  # of the table of chains: first token, length, and the rows before, after and kept


@dataclass(frozen=True, eq=False)
class Chains:
    """The chains of a packed tree, in the order of their tokens.

    Attributes:
        starts: int64 [N], first token of each chain.
        lengths: int64 [N], number of tokens, at least 1.
        parents: int64 [N], the chain whose last token the first token follows; below 0 as in the parents of tokens.
        levels: int64 [N], number of chains on the way to a chain without one before it.
    """

    starts: IntArray
    lengths: IntArray
    parents: IntArray
    levels: IntArray

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def ends(self) -> IntArray:
        """int64 [N], last token of each chain."""
        return self.starts + self.lengths - 1


def chains(parent: npt.NDArray[np.integer], size: int | None = None, cuts: Sequence[int] | IntArray = ()) -> Chains:
    """Decompose tokens in depth-first order into chains.

    Args:
        parent: [T], the token that each token follows, before it in the order; below 0 if none does, and then kept as
            the parent of the token's chain.
        size: at most this many tokens in a chain; longer ones are cut. None for any number.
        cuts: tokens at which a chain ends whatever follows, because the state there is needed.

    Raises:
        InputError: if `size` < 1, or a token does not come after its parent.
    """
    check_int("size", size, optional=True)
    above = np.asarray(parent, dtype=np.int64)
    count = len(above)
    before = np.arange(-1, count - 1)
    expect(bool((above <= before).all()), "parent", "tokens that come after their parents", parent)
    ends = np.bincount(above[above >= 0], minlength=count) != 1
    ends[np.asarray(cuts, dtype=np.int64)] = True
    begins = above != before
    begins[1:] |= ends[:-1]
    begins[:1] = True
    starts = np.flatnonzero(begins)
    lengths = np.diff(np.append(starts, count))
    if size is not None:
        pieces = -(-lengths // size)
        place = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        starts = np.repeat(starts, pieces) + size * place
        lengths = np.diff(np.append(starts, count))
    parents = above[starts]
    owner = np.repeat(np.arange(len(starts)), lengths)
    follows = parents >= 0
    parents[follows] = owner[parents[follows]]
    return Chains(starts, lengths, parents, _depths(parents))


def _depths(parents: IntArray) -> IntArray:
    """Return the number of ancestors of each node, in as many steps as the binary digits of the largest."""
    hops = np.maximum(parents, -1).astype(np.int32)  # the ancestor up to which a node's depth is counted
    depths = (hops >= 0).astype(np.int32)
    inner = np.flatnonzero(depths)
    while len(inner):
        above = hops[inner]
        depths[inner] += depths[above]
        hops[inner] = further = hops[above]
        inner = inner[further >= 0]
    return depths.astype(np.int64)


def nearest_ancestors(parent: npt.NDArray[np.integer], count: int) -> IntArray:
    """Return the `count` nearest ancestors of each token, nearest first: int64 [T, count].

    An ancestor that does not exist is -1. A parent of -2 - r is a text before this tree, whose last `count` tokens
    are rows r * count to (r + 1) * count - 1 of a table, oldest first; row i of that table is -2 - i here.

    Args:
        parent: [T], the token that each token follows, before it in the order; -1, or -2 - r.
        count: number of ancestors.
    """
    above = np.asarray(parent, dtype=np.int64)
    found = np.full((len(above), count), -1, dtype=np.int64)
    inside, outside = above >= 0, above < -1
    for step in range(count):
        found[inside, step] = above[inside] if step == 0 else found[above[inside], step - 1]
        found[outside, step] = -2 - ((-2 - above[outside]) * count + count - 1 - step)
    return found


class WalkLevel(NamedTuple):
    """Chains that start from states at the ends of chains of the level before.

    Attributes:
        first: row of the first chain in the table.
        chains: number of chains.
        states: number of states at their ends that the next level starts from.
    """

    first: int
    chains: int
    states: int


class Walks:
    """The chains of a packed tree by level, the longest of a level first.

    Args:
        parent, keep, device: see `ScanPlan`.

    Attributes:
        table: int32 [N, 5], for each chain its first token, its number of tokens, the row of the state before it among
            the states of the level before (level 0: among the initial ones), the row of the state at its end among the
            states of its level, and the row of that state in the result. A missing row is -1.
        levels: the levels.
        repeats: int64 [K], the row of the result for each kept token; None if each has its own.
    """

    def __init__(self, parent: IntArray, keep: IntArray, device: torch.device) -> None:
        found = chains(parent, None, keep)
        self._starts, self._lengths, self._device = found.starts, found.lengths, device
        self._chunks: dict[int, Tensor] = {}
        order = np.lexsort((-found.lengths, found.levels))
        counts = np.bincount(found.levels)
        firsts = np.cumsum(counts) - counts
        above = found.parents
        inner = np.unique(above[above >= 0])  # chains with others behind them
        inner = inner[np.argsort(found.levels[inner], kind="stable")]
        states = np.bincount(found.levels[inner], minlength=len(counts))
        after = np.full(len(found), -1)
        after[inner] = np.arange(len(inner)) - np.repeat(np.cumsum(states) - states, states)
        before = -2 - above  # initial states, and -1 for none
        before[above >= 0] = after[above[above >= 0]]
        ends = np.searchsorted(found.starts, keep, side="right") - 1
        kept = np.full(len(found), -1)
        kept[ends] = np.arange(len(keep))
        table = np.stack([found.starts, found.lengths, before, after, kept], axis=1)[order].astype(np.int32)
        self.table = self._moved(table)
        self.levels = [
            WalkLevel(*level) for level in zip(firsts.tolist(), counts.tolist(), states.tolist(), strict=True)
        ]
        rows = kept[ends]
        self.repeats = None if (rows == np.arange(len(keep))).all() else self._moved(rows)

    def chunks(self, size: int) -> Tensor:
        """Return the first token and the length of each chunk of at most `size` tokens: int32 [M, 2]."""
        if size not in self._chunks:
            pieces = -(-self._lengths // size)
            place = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
            starts = np.repeat(self._starts, pieces) + size * place
            lengths = np.minimum(np.repeat(self._lengths, pieces) - size * place, size)
            self._chunks[size] = self._moved(np.stack([starts, lengths], axis=1).astype(np.int32))
        return self._chunks[size]

    def _moved(self, array: npt.NDArray[np.integer]) -> Tensor:
        return Upload(self._device).add(np.ascontiguousarray(array)).get()
