"""KeyValues: keys and values of tokens already computed; Reuse: which tokens of a tree they cover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fastreader.core.tree import IntArray, TreeStats


@dataclass
class KeyValues:
    """Keys (rotated) and values of the T tokens of a packed tree, in the type they are multiplied in.

    Attributes:
        keys: for each layer [T, Hk, D].
        values: for each layer [T, Hk, Dv].
    """

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def add_layer(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store one layer; layers come in order."""
        assert layer == len(self.keys)
        self.keys.append(key.contiguous())
        self.values.append(value.contiguous())

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.keys[0]) if self.keys else 0

    def select(self, rows: IntArray) -> None:
        """Drop all tokens but these, int64 [R]; layer by layer, so at most one layer is held twice."""
        if len(rows) == len(self):
            return
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                tensors[layer] = old[torch.from_numpy(rows).to(old.device)]

    def extend(self, other: KeyValues) -> None:
        """Append the tokens of `other`, which has as many layers and is empty afterwards."""
        for tensors, others in ((self.keys, other.keys), (self.values, other.values)):
            for layer, new in enumerate(others):
                tensors[layer] = torch.cat([tensors[layer], new])
                others[layer] = new.new_empty(0)
            others.clear()

    @property
    def nbytes(self) -> int:
        """Memory of the tensors, in bytes."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))


@dataclass(frozen=True, eq=False)
class CachedTokens:
    """Tokens of a tree that are cached in one `KeyValues`.

    Attributes:
        indices: int64 [P], their packed indices.
        rows: int64 [P], their rows in `key_values`.
        key_values: the cache.
    """

    indices: IntArray
    rows: IntArray
    key_values: KeyValues


@dataclass(frozen=True, eq=False)
class Reuse:
    """The tokens of a tree that a pass computes, and those it takes from caches.

    Attributes:
        computed: int64 [C], packed indices that are computed, ascending.
        cached: the other tokens, each in one of these.
    """

    computed: IntArray
    cached: Sequence[CachedTokens]

    @property
    def num_cached(self) -> int:
        """Number of tokens that need not be computed."""
        return sum(len(part.indices) for part in self.cached)

    def join(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of the whole tree [T, Hk, ...] from those of the computed tokens [C, Hk, ...]."""
        device = key.device
        computed, total = torch.from_numpy(self.computed).to(device), len(self.computed) + self.num_cached
        keys, values = (new.new_empty(total, *new.shape[1:]) for new in (key, value))
        keys[computed], values[computed] = key, value
        for part in self.cached:
            indices, rows = (torch.from_numpy(a).to(device) for a in (part.indices, part.rows))
            keys[indices] = part.key_values.keys[layer][rows]
            values[indices] = part.key_values.values[layer][rows]
        return keys, values

    def state_rows(self, indices: IntArray) -> IntArray:
        """Return the rows of packed indices (of computed tokens) among the states of the pass."""
        return np.searchsorted(self.computed, indices)

    def stats(self, stats: TreeStats) -> TreeStats:
        """Return a tree's counts with the cached tokens moved from computed to cached."""
        return replace(stats, computed_tokens=len(self.computed), cached_tokens=self.num_cached)
