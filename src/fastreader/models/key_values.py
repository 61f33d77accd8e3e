"""KeyValues: what attention needs of tokens already read; Reuse: which tokens of a tree those are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fastreader.core.tree import IntArray, TreeStats


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

    def __len__(self) -> int:
        """Tokens they are of."""
        return len(self.keys[0]) if self.keys else 0

    def narrow(self, rows: IntArray) -> None:
        """Let go of all tokens but these, int64 [R]; layer by layer, so that no more than one is held twice."""
        if len(rows) == len(self):
            return
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                tensors[layer] = old[torch.from_numpy(rows).to(old.device)]

    def append(self, other: KeyValues) -> None:
        """Put another's tokens, of as many layers, behind one's own; it is empty afterwards."""
        for mine, others in ((self.keys, other.keys), (self.values, other.values)):
            for layer, new in enumerate(others):
                mine[layer] = torch.cat([mine[layer], new])
                others[layer] = new.new_empty(0)
            others.clear()

    @property
    def nbytes(self) -> int:
        """Memory they take, in bytes."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))


@dataclass(frozen=True, eq=False)
class Part:
    """Tokens of a tree that are kept in one place.

    Attributes:
        known: int64 [P]: their packed indices.
        rows: int64 [P], where they are kept.
        values: the keys and values kept.
    """

    known: IntArray
    rows: IntArray
    values: KeyValues


@dataclass(frozen=True, eq=False)
class Reuse:
    """Which tokens of a tree a pass need not compute.

    Attributes:
        fresh: int64 [F], ascending: packed indices that are computed.
        parts: the others, each in one of them.
    """

    fresh: IntArray
    parts: Sequence[Part]

    @property
    def known(self) -> int:
        """How many tokens need not be computed."""
        return sum(len(part.known) for part in self.parts)

    def join(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [F, Hk, D] and values [F, Hk, Dv] of the fresh tokens to those of the whole tree, [T, Hk, ...]."""
        device = key.device
        fresh, total = torch.from_numpy(self.fresh).to(device), len(self.fresh) + self.known
        keys, values = (new.new_empty(total, *new.shape[1:]) for new in (key, value))
        keys[fresh], values[fresh] = key, value
        for part in self.parts:
            known, rows = (torch.from_numpy(a).to(device) for a in (part.known, part.rows))
            keys[known] = part.values.keys[layer][rows]
            values[known] = part.values.values[layer][rows]
        return keys, values

    def state_rows(self, index: IntArray) -> IntArray:
        """Where the states of packed indices (computed ones) are among the states of the pass."""
        return np.searchsorted(self.fresh, index)

    def stats(self, stats: TreeStats) -> TreeStats:
        """The tree's counts, less what is not computed."""
        return replace(stats, computed_tokens=len(self.fresh), cached_tokens=self.known)
