"""KeyValues: keys and values of computed tokens, and Reuse: which tokens of a tree they cover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fastreader.core.lazy import cached_property
from fastreader.core.tree import IntArray, TreeStats
from fastreader.models.passes.recurrent_states import RecurrentStates
from fastreader.ops.upload import Upload, Uploaded


class Indices:
    """Indices that every layer of a pass needs, copied to a device once: with the pass's upload, or by itself."""

    def __init__(self, array: IntArray) -> None:
        self.array = array
        self._there: dict[torch.device, Tensor] = {}
        self._sent: Uploaded | None = None

    def prepare(self, upload: Upload) -> None:
        """Let an upload bring them to its device."""
        if self._sent is None and upload.device not in self._there:
            self._sent = upload.add(self.array)

    def on(self, device: torch.device) -> Tensor:
        """Return them on a device."""
        if device not in self._there:
            sent = self._sent if self._sent is not None and self._sent.upload.device == device else None
            self._there[device] = torch.from_numpy(self.array).to(device) if sent is None else sent.get()
        return self._there[device]


@dataclass
class KeyValues:
    """Keys (rotated) and values of the T tokens of a packed tree, in the type they are multiplied in.

    Attributes:
        keys: for each layer [T, Hk, D].
        values: for each layer [T, Hk, Dv].
        states: of recurrent layers after some of the tokens; None for a model without such layers.
        tokens: T, for a model without attention.
        rows: int64 [R], ascending, the only tokens of a tree that are stored; None stores all.
    """

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    states: RecurrentStates | None = None
    tokens: int = 0
    rows: IntArray | None = None

    def add_layer(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store the next layer."""
        assert layer == len(self.keys)
        if self.rows is not None:
            rows = self._stored.on(key.device)
            key, value = key[rows], value[rows]
        self.keys.append(key.contiguous())
        self.values.append(value.contiguous())

    def prepare(self, upload: Upload) -> None:
        """Let an upload bring `rows` to its device, where `add_layer` needs them."""
        self._stored.prepare(upload)

    @cached_property
    def _stored(self) -> Indices:
        assert self.rows is not None
        return Indices(self.rows)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.keys[0]) if self.keys else self.tokens

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        states = [] if self.states is None else self.states.tensors.values()
        return next(iter((*self.keys, *states))).device

    def select(self, rows: IntArray) -> None:
        """Drop all tokens but these, int64 [R], layer by layer, so that at most one layer is held twice."""
        if len(rows) == len(self):
            return
        self.tokens = len(rows)
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                tensors[layer] = old[torch.from_numpy(rows).to(old.device)]

    def extend(self, other: KeyValues) -> None:
        """Append the tokens of `other`, which has as many layers and is empty afterwards, without its states."""
        self.tokens += other.tokens
        for tensors, others in ((self.keys, other.keys), (self.values, other.values)):
            for layer, new in enumerate(others):
                tensors[layer] = torch.cat([tensors[layer], new])
                others[layer] = new.new_empty(0)
            others.clear()

    def part(self, rows: IntArray, nodes: IntArray) -> KeyValues:
        """Return a copy of some tokens, which shares no memory with this one.

        Args:
            rows: int64 [R], of keys and values.
            nodes: int64 [R], the same tokens as `states` numbers them.
        """
        found = KeyValues(tokens=len(rows))
        for tensors, own in ((self.keys, found.keys), (self.values, found.values)):
            for tensor in tensors:
                own.append(tensor[torch.from_numpy(rows).to(tensor.device)])
        if self.states is not None:
            having = np.flatnonzero(np.isin(nodes, self.states.tokens))
            found.states = self.states.select(np.searchsorted(self.states.tokens, nodes[having]))
            found.states.tokens = having
        return found

    def take(self, layer: int, rows: slice | Indices) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values of some tokens [R, Hk, ...], without a copy if `rows` is a slice."""
        at = rows if isinstance(rows, slice) else rows.on(self.keys[layer].device)
        return self.keys[layer][at], self.values[layer][at]

    @property
    def nbytes(self) -> int:
        """Memory of keys and values, in bytes."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))

    @property
    def total_bytes(self) -> int:
        """Memory of keys, values and states, in bytes."""
        return self.nbytes + (0 if self.states is None else self.states.nbytes)


@dataclass(frozen=True, eq=False)
class CachedTokens:
    """Tokens of a tree that are cached in one `KeyValues`.

    Attributes:
        indices: int64 [P], their packed indices.
        rows: int64 [P], their rows in `key_values`.
    """

    indices: IntArray
    rows: IntArray
    key_values: KeyValues

    def take(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the tokens' keys and values of a layer [P, Hk, ...], without a copy if they follow each other."""
        return self.key_values.take(layer, self._at)

    def prepare(self, upload: Upload) -> None:
        """Let an upload bring to its device what `take` needs there."""
        if isinstance(self._at, Indices):
            self._at.prepare(upload)

    @cached_property
    def _at(self) -> slice | Indices:
        return Indices(self.rows) if self._span is None else self._span

    @cached_property
    def _span(self) -> slice | None:
        together = bool((np.diff(self.rows) == 1).all())
        return slice(int(self.rows[0]), int(self.rows[-1]) + 1) if together else None


@dataclass(frozen=True, eq=False)
class Reuse:
    """The tokens of a tree that a pass computes, and those it takes from caches.

    Attributes:
        computed: int64 [C], packed indices that are computed, ascending.
        cached: the other tokens, each in one of these.
        states: of recurrent layers after the cached tokens that computed ones follow; None without such layers.
    """

    computed: IntArray
    cached: Sequence[CachedTokens]
    states: RecurrentStates | None = None

    @property
    def num_cached(self) -> int:
        """Number of tokens that need not be computed."""
        return sum(len(part.indices) for part in self.cached)

    def join(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of the whole tree [T, Hk, ...] given the computed tokens' [C, Hk, ...]."""
        device = key.device
        computed, total = self._new.on(device), len(self.computed) + self.num_cached
        keys, values = (new.new_empty(total, *new.shape[1:]) for new in (key, value))
        keys[computed], values[computed] = key, value
        indices = self._old.on(device)
        cached = [part.take(layer) for part in self.cached]
        keys[indices] = torch.cat([key.to(device) for key, _ in cached])
        values[indices] = torch.cat([value.to(device) for _, value in cached])
        return keys, values

    def prepare(self, upload: Upload) -> None:
        """Let an upload bring to its device what `join` needs there."""
        self._new.prepare(upload)
        self._old.prepare(upload)
        for part in self.cached:
            part.prepare(upload)

    @cached_property
    def _new(self) -> Indices:
        return Indices(self.computed)

    @cached_property
    def _old(self) -> Indices:
        return Indices(np.concatenate([part.indices for part in self.cached]))

    def state_rows(self, indices: IntArray) -> IntArray:
        """Return the rows of packed indices (of computed tokens) among the states of the pass."""
        return np.searchsorted(self.computed, indices)

    def local_parents(self, parent: IntArray) -> IntArray:
        """Return the parents of the computed tokens among these, int64 [C], -2 - r for row r of `states`, -1 for none.

        Args:
            parent: int64 [T], of the whole tree.
        """
        place = np.full(len(parent), -1, dtype=np.int64)
        place[self.computed] = np.arange(len(self.computed))
        if self.states is not None:
            place[self.states.tokens] = -2 - np.arange(len(self.states.tokens))
        above = parent[self.computed]
        local = np.where(above >= 0, place[above], -1)
        assert (local[above >= 0] != -1).all(), "a computed token follows a cached one without a state"
        return local

    def stats(self, stats: TreeStats) -> TreeStats:
        """Return a tree's counts with the cached tokens moved from computed to cached."""
        return replace(stats, computed_tokens=len(self.computed), cached_tokens=self.num_cached)
