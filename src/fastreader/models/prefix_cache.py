"""Kept: keys and values of prefixes that stay in memory between passes, and finding them again in a new tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastreader.core.tree import PrefixTree
from fastreader.models.key_values import KeyValues, Part, Reuse
from fastreader.models.rotary import RotaryRegimes

_PARTS = 8


class Kept:
    """Keys and values of packed prefixes, found again by walking a new tree from its roots.

    Args:
        regimes: the model's rotary length rule: keys made under one regime say nothing under another.
    """

    def __init__(self, regimes: RotaryRegimes) -> None:
        self._regimes = regimes
        # In the order they came. Few are left as they are; more are put behind those that are no larger, so that they
        # stay few and the large ones where they are.
        self._parts: list[KeyValues] = []
        # (regime, node it follows or -1, token) -> node; a node is a row of the parts behind one another
        self._nodes: dict[tuple[int, int, int], int] = {}
        self._count = 0

    @property
    def nbytes(self) -> int:
        """Memory the keys and values take, in bytes."""
        return sum(part.nbytes for part in self._parts)

    def __len__(self) -> int:
        return self._count

    def add(self, tree: PrefixTree, values: KeyValues) -> None:
        """Keep a tree's keys and values, those of tokens already kept left out; all its sequences are of one regime.

        `values` is taken over, and what of it is not kept let go.
        """
        regime = self._regime(tree)
        node = np.empty(len(tree), dtype=np.int64)
        fresh: list[int] = []
        for j, (token, parent) in enumerate(zip(tree.token_ids.tolist(), tree.parent.tolist(), strict=True)):
            key = (regime, -1 if parent < 0 else int(node[parent]), token)
            if key not in self._nodes:
                self._nodes[key] = self._count + len(fresh)
                fresh.append(j)
            node[j] = self._nodes[key]
        if not fresh:
            return
        values.narrow(np.asarray(fresh, dtype=np.int64))
        self._parts.append(values)
        self._count += len(fresh)
        while len(self._parts) > _PARTS and len(self._parts[-2]) <= len(self._parts[-1]):
            last = self._parts.pop()
            self._parts[-1].append(last)

    def new(self, trees: Sequence[PrefixTree]) -> int:
        """How many tokens these trees would add; one that several of them hold counts once."""
        added: dict[tuple[int, int, int], int] = {}
        for tree in trees:
            regime = self._regime(tree)
            node = np.empty(len(tree), dtype=np.int64)
            for j, (token, parent) in enumerate(zip(tree.token_ids.tolist(), tree.parent.tolist(), strict=True)):
                key = (regime, -1 if parent < 0 else int(node[parent]), token)
                known = self._nodes.get(key)
                node[j] = added.setdefault(key, self._count + len(added)) if known is None else known
        return len(added)

    def reuse(self, tree: PrefixTree) -> Reuse | None:
        """What of a tree is kept; None for nothing. All sequences of the tree are of one regime.

        A token whose hidden state is asked for (the last of a prompt, or before a scored token) is computed
        even where its keys are kept.
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
        known = np.flatnonzero(node >= 0)
        if len(known) == 0:
            return None
        found_in, parts, first = node[known], [], 0
        for values in self._parts:
            inside = np.flatnonzero((found_in >= first) & (found_in < first + len(values)))
            if len(inside):
                parts.append(Part(known[inside], found_in[inside] - first, values))
            first += len(values)
        return Reuse(np.flatnonzero(node < 0), parts)

    def _regime(self, tree: PrefixTree) -> int:
        return self._regimes.of(int(tree.positions.max()) + 1)
