"""PrefixCache: keys and values of prefixes that stay in memory between passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fastreader.core.tree import IntArray, PrefixTree
from fastreader.models.config.facts import RotaryRegimes
from fastreader.models.passes.key_values import CachedTokens, KeyValues, Reuse
from fastreader.models.passes.recurrent_states import RecurrentStates, joined_states

_MAX_PARTS = 8


class KeptKeys(Protocol):
    """Keys and values that passes start from, and that they may add to."""

    @property
    def keeps(self) -> bool:
        """Whether passes add to them."""
        ...

    @property
    def loads(self) -> bool:
        """Whether passes put keys and values into memory that are not there yet."""
        ...

    def admit(self, trees: Sequence[PrefixTree]) -> None:
        """Raise if what passes over these trees add would not fit."""
        ...

    def lookup(self, tree: PrefixTree) -> Reuse | None:
        """Return the tokens of a tree that need not be computed, or None if all do."""
        ...

    def new_key_values(self, tree: PrefixTree, reuse: Reuse | None) -> KeyValues | None:
        """Return an empty cache for a pass to fill, or None if it adds nothing."""
        ...

    def add(self, tree: PrefixTree, key_values: KeyValues) -> None:
        """Keep what a pass has filled."""
        ...


class PrefixCache:
    """Keys and values of packed prefixes, looked up by walking a new tree from its roots.

    Args:
        regimes: the model's rotary length rule; keys of one regime are never reused in another.
    """

    def __init__(self, regimes: RotaryRegimes) -> None:
        self._regimes = regimes
        # In order of arrival. The first few are never moved; later ones are merged into the part before them while
        # that is no larger, so there are few parts and the large ones stay in place.
        self._parts: list[KeyValues] = []
        # (regime, node it follows or -1, token) -> node; a node is a row of the concatenated parts
        self._nodes: dict[tuple[int, int, int], int] = {}
        self._count = 0
        # node -> where the states of recurrent layers after it are; None for a model without such layers
        self._states: dict[int, tuple[RecurrentStates, int]] | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the keys and values and of the states of recurrent layers, in bytes."""
        states = {id(states): states for states, _ in (self._states or {}).values()}
        return sum(part.nbytes for part in self._parts) + sum(part.nbytes for part in states.values())

    @property
    def num_states(self) -> int:
        """Number of tokens after which the states of recurrent layers are kept."""
        return len(self._states or {})

    def __len__(self) -> int:
        return self._count

    def add(self, tree: PrefixTree, key_values: KeyValues) -> None:
        """Cache the keys and values of a tree, whose sequences share one regime, except of tokens already cached.

        Takes ownership of `key_values`.
        """
        added: dict[tuple[int, int, int], int] = {}
        indices, nodes = self._number_new(tree, added)
        if key_values.states is not None:
            self._add_states(key_values.states, nodes)
        if not indices:
            return
        self._nodes |= added
        key_values.select(np.asarray(indices, dtype=np.int64))
        self._parts.append(key_values)
        self._count += len(indices)
        while len(self._parts) > _MAX_PARTS and len(self._parts[-2]) <= len(self._parts[-1]):
            last = self._parts.pop()
            self._parts[-1].extend(last)

    def insert(self, regime: int, after: int, tokens: Sequence[int], key_values: KeyValues) -> int:
        """Cache the keys and values of a chain of tokens as one part, which stays the caller's.

        Not to be mixed with `add`, which merges parts.

        Args:
            regime: of the sequences that the chain begins or continues.
            after: node that the first token follows; -1 for none.
            tokens: at least one, as many as `key_values` has.

        Returns:
            The node of the last token.
        """
        assert len(tokens) == len(key_values), f"{len(tokens)} tokens with keys and values of {len(key_values)}"
        nodes = []
        for row, token in enumerate(tokens):
            after = self._nodes.setdefault((regime, after, token), self._count + row)
            nodes.append(after)
        if key_values.states is not None:
            self._add_states(key_values.states, nodes)
        self._parts.append(key_values)
        self._count += len(tokens)
        return after

    def count_new(self, trees: Sequence[PrefixTree]) -> int:
        """Return the number of tokens that these trees would add, counting shared ones once."""
        added: dict[tuple[int, int, int], int] = {}
        for tree in trees:
            self._number_new(tree, added)
        return len(added)

    def _add_states(self, states: RecurrentStates, nodes: list[int]) -> None:
        """Cache the states after tokens that have none so far, given the nodes of all tokens of the tree."""
        if self._states is None:
            self._states = {}
        tokens = states.tokens.tolist()
        new = [row for row, token in enumerate(tokens) if nodes[token] not in self._states]
        own = states.select(np.asarray(new, dtype=np.int64))
        self._states |= {nodes[tokens[row]]: (own, place) for place, row in enumerate(new)}

    def _number_new(self, tree: PrefixTree, added: dict[tuple[int, int, int], int]) -> tuple[list[int], list[int]]:
        """Add the tree's uncached tokens to `added`, and return their packed indices and the nodes of all tokens."""
        regime = self._regime(tree)
        nodes: list[int] = []
        indices: list[int] = []
        for j, (token, parent) in enumerate(zip(tree.token_ids.tolist(), tree.parent.tolist(), strict=True)):
            key = (regime, -1 if parent < 0 else nodes[parent], token)
            node = self._nodes.get(key, added.get(key))
            if node is None:
                node = added[key] = self._count + len(added)
                indices.append(j)
            nodes.append(node)
        return indices, nodes

    def lookup(self, tree: PrefixTree) -> Reuse | None:
        """Return the cached tokens of a tree whose sequences share one regime, or None if no token is cached.

        A token whose hidden state is needed (the last of a prompt, or before a scored token) is computed even if its
        keys are cached.
        """
        regime = self._regime(tree)
        node = np.full(len(tree), -1, dtype=np.int64)
        tokens, parents, subtree_end = tree.token_ids.tolist(), tree.parent.tolist(), tree.subtree_end.tolist()
        j = 0
        while j < len(tokens):
            before = -1 if parents[j] < 0 else int(node[parents[j]])
            found = self._nodes.get((regime, before, tokens[j]), -1)
            node[j] = found
            j = j + 1 if found >= 0 else subtree_end[j]
        node[tree.sources] = -1
        node[tree.leaves] = -1
        states = None if self._states is None else self._states_before(node, tree.parent)
        indices = np.flatnonzero(node >= 0)
        if len(indices) == 0:
            return None
        nodes, cached = node[indices], []
        starts = np.cumsum([0, *map(len, self._parts)])
        part_of = np.searchsorted(starts, nodes, side="right") - 1
        by_part = np.argsort(part_of, kind="stable")
        for inside in np.split(by_part, np.flatnonzero(np.diff(part_of[by_part])) + 1):
            part = int(part_of[inside[0]])
            cached.append(CachedTokens(indices[inside], nodes[inside] - starts[part], self._parts[part]))
        return Reuse(np.flatnonzero(node < 0), cached, states)

    def _states_before(self, node: IntArray, parent: npt.NDArray[np.int32]) -> RecurrentStates:
        """Return the states that computed tokens start from, after marking cached tokens without one as computed.

        Args:
            node: [T], of the cached tokens, -1 for computed ones; changed in place.
            parent: [T], of the tree.
        """
        assert self._states is not None
        for j in range(len(node) - 1, -1, -1):
            above = parent[j]
            if node[j] < 0 <= above and node[above] >= 0 and int(node[above]) not in self._states:
                node[above] = -1
        above = parent[(node < 0) & (parent >= 0)]
        tokens = np.unique(above[node[above] >= 0]).astype(np.int64)
        return joined_states([self._states[n] for n in node[tokens].tolist()], tokens)

    def _regime(self, tree: PrefixTree) -> int:
        return self._regimes.of(int(tree.positions.max()) + 1)
