"""Chains: runs of tokens of a packed tree that a recurrent layer scans in one piece, and the order to scan them in.

The state of a recurrent layer is a function of a token's path. A chain is a run of tokens of which each follows the one
before it and no other token does, so only the state at its end is needed by others. A chain that follows another one
starts from the state at its end and is one level deeper. Chains of a level do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastreader.core.checks import check_int, expect

IntArray = npt.NDArray[np.int64]


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
