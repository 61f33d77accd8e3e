"""KeyValues: what attention needs of tokens already read; Reuse: which tokens of a tree those are."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fastreader.tree import IntArray, TreeStats


@dataclass
class KeyValues:
    """Keys (rotated) and values of the T tokens of a packed tree, once each, in the type they are multiplied in.

    Attributes:
        keys: for each layer [T, Hk, D].
        values: for each layer [T, Hk, Dv].
    """

    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def empty(cls) -> KeyValues:
        """Of no layer yet; a pass puts them in one by one."""
        return cls([], [])

    def put(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Keep one layer's; layers come in order."""
        assert layer == len(self.keys)
        self.keys.append(key.contiguous())
        self.values.append(value.contiguous())

    def extend(self, other: KeyValues, rows: IntArray) -> None:
        """Put some of another's tokens behind one's own; layer by layer, so that no more than one is held twice.

        Args:
            other: of as many layers; it is empty afterwards.
            rows: int64 [R], which of its tokens, ascending.
        """
        for mine, others in ((self.keys, other.keys), (self.values, other.values)):
            first = not mine
            for layer in range(len(others)):
                new = others[layer]
                if len(rows) < len(new):
                    new = new[torch.from_numpy(rows).to(new.device)]
                if first:
                    mine.append(new)
                elif len(rows):
                    mine[layer] = torch.cat([mine[layer], new])
                others[layer] = new.new_empty(0)
            others.clear()

    @property
    def nbytes(self) -> int:
        """Memory they take, in bytes."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))


@dataclass(frozen=True, eq=False)
class Reuse:
    """Which tokens of a tree a pass need not compute.

    Attributes:
        fresh: int64 [F], ascending: packed indices that are computed.
        known: int64 [T - F], ascending: packed indices whose keys and values are kept.
        rows: int64 [T - F], where they are kept.
        values: the keys and values kept.
    """

    fresh: IntArray
    known: IntArray
    rows: IntArray
    values: KeyValues

    def join(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [F, Hk, D] and values [F, Hk, Dv] of the fresh tokens to those of the whole tree, [T, Hk, ...]."""
        device = key.device
        fresh, known, rows = (torch.from_numpy(a).to(device) for a in (self.fresh, self.known, self.rows))
        joined = []
        for new, old in ((key, self.values.keys[layer]), (value, self.values.values[layer])):
            whole = new.new_empty(len(fresh) + len(known), *new.shape[1:])
            whole[fresh] = new
            whole[known] = old[rows]
            joined.append(whole)
        return joined[0], joined[1]

    def state_rows(self, index: IntArray) -> IntArray:
        """Where the states of packed indices (computed ones) are among the states of the pass."""
        return np.searchsorted(self.fresh, index)

    def stats(self, stats: TreeStats) -> TreeStats:
        """The tree's counts, less what is not computed."""
        return replace(stats, computed=len(self.fresh), reused=len(self.known))
