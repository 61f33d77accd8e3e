"""Walks: tables for kernels of which a program follows a whole chain of the tree, chunk by chunk or token by token.

`ScanPlan.levels` cuts chains into chunks so that one batch computes many of them. A program that keeps the state of its
chain needs no cut inside of it, so a level here is a level of whole chains, and a tree has few of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.ops.recurrent.chains import IntArray, chains
from fastreader.ops.upload import Upload

COLUMNS = 5  # of the table of chains: first token, length, and the rows before, after and kept


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
