"""KnownPassages: the tokens of one call's passes that a `PassageCache` has, and those that the passes add."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastreader.core.tree import IntArray, PrefixTree, TokenPairs, Tokens, TreeStats
from fastreader.models.config.facts import RotaryRegimes
from fastreader.models.passage_cache.entries import PassageEntries
from fastreader.models.passage_cache.folder import HEADER, PrefixKey
from fastreader.models.passes.key_values import KeyValues, Reuse
from fastreader.models.passes.prefix_cache import PrefixCache
from fastreader.models.passes.recurrent_states import RecurrentStates

KEPT_STATES = 2
"""States that a part keeps: after its last token, and the one before, since a last token may be computed again."""
Ends = Sequence[Sequence[int]]
"""For each sequence, the numbers of tokens after which its header ends, and its first passage; either may lack."""


@dataclass(frozen=True, eq=False)
class _Part:
    """A header, or the passage after it."""

    key: PrefixKey
    tokens: Sequence[int]
    start: int
    header: _Part | None

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class KnownPassages:
    """The look-ups of one call: a pass at a time, `lookup`, `new_key_values` and `add`.

    Args:
        entries: what is known.
        fingerprint: of the model, see `LocalModel.fingerprint`.
        regimes: the model's rotary length rule.
        sequences: (context, continuation) pairs of the call.
        ends: where header and first passage end in each context.
        recurrent: whether the model has layers with states.
        on_cpu: whether all layers are on the CPU, where files are mapped.
        about: how the reader describes itself; None for a model that no other process can have.
    """

    def __init__(
        self,
        entries: PassageEntries,
        fingerprint: str,
        regimes: RotaryRegimes,
        sequences: TokenPairs,
        ends: Ends,
        *,
        recurrent: bool,
        on_cpu: bool,
        about: Mapping[str, Any] | None,
    ) -> None:
        self._about = about
        self._known = entries
        self._fingerprint = fingerprint
        self._regimes = regimes
        self._recurrent = recurrent
        self._on_cpu = on_cpu
        self._sequences = sequences
        self._ends = ends
        # By identity of the context, which is kept: the identity of one that is gone may become another's.
        self._split: dict[tuple[int, int, tuple[int, ...]], tuple[Tokens, tuple[_Part, ...]]] = {}
        self._missing: list[tuple[_Part, IntArray]] = []  # of the pass, with packed indices

    def admit(self, trees: Sequence[PrefixTree]) -> None:
        """Accept any pass: the cache makes room for what it keeps."""

    @property
    def keeps(self) -> bool:
        """Whether a pass would add something, whose keys and values need memory until its end."""
        return not all(map(self._known.holds, self.tokens()))

    @property
    def loads(self) -> bool:
        """Whether files are copied to a device, where a pass holds all that it starts from."""
        return not self._on_cpu and any(map(self._known.only_in_files, self.tokens()))

    def tokens(self) -> dict[PrefixKey, int]:
        """Return the number of tokens of each header and passage of the call, by their keys."""
        found: dict[PrefixKey, int] = {}
        for sequence, (context, continuation) in enumerate(self._sequences):
            regime = self._regimes.of(len(context) + max(len(continuation) - 1, 0))
            found |= {part.key: len(part.tokens) for part in self._parts(sequence, regime)}
        return found

    def lookup(self, tree: PrefixTree) -> Reuse | None:
        """Return the cached tokens of a tree whose sequences share one regime, or None if no token is cached."""
        reuse, found, read = self._find(tree, lambda part: self._known.get(part.key))
        for part in reversed(found):  # headers after their passages, which leave first
            self._known.touch(part.key)
        passages = [sum(part.header is not None for part in parts) for parts in (found, [one for one, _ in read])]
        self._known.count(*passages)
        parents = tree.parent.tolist() if read else []
        self._missing = [(part, _path(parents, tree, leaf, part)) for part, leaf in read]
        return reuse

    def stats(self, tree: PrefixTree) -> TreeStats:
        """Return the counts of a pass that is not run, from what is cached now, of which nothing is read or used."""
        reuse, _, _ = self._find(tree, self._outline)
        return tree.stats if reuse is None else reuse.stats(tree.stats)

    def _outline(self, part: _Part) -> KeyValues | None:
        """Return a part that is cached without its values."""
        if not self._known.holds(part.key):
            return None
        count = len(part.tokens)
        # Where `new_key_values` keeps them.
        states = RecurrentStates(np.arange(max(0, count - KEPT_STATES), count)) if self._recurrent else None
        return KeyValues(tokens=count, states=states)

    def _find(
        self, tree: PrefixTree, get: Callable[[_Part], KeyValues | None]
    ) -> tuple[Reuse | None, list[_Part], list[tuple[_Part, int]]]:
        """Return the cached tokens, the parts that they are, and the parts to compute with a leaf behind each.

        Args:
            tree: of the pass.
            get: returns what is cached of a part, or None.
        """
        regime = self._regimes.of(int(tree.positions.max()) + 1)
        kept = PrefixCache(self._regimes)
        found: dict[PrefixKey, tuple[_Part, int]] = {}  # with the node of its last token
        read: dict[PrefixKey, tuple[_Part, int]] = {}
        for row, sequence in enumerate(tree.sequence_ids.tolist()):
            for part in self._parts(sequence, regime):
                if part.key in found or part.key in read:
                    continue
                above = None if part.header is None else found.get(part.header.key)
                lost = part.header is not None and above is None
                key_values = None if lost else get(part)
                if key_values is None:
                    read[part.key] = part, int(tree.leaves[row])
                else:
                    after = -1 if above is None else above[1]
                    found[part.key] = part, kept.insert(regime, after, part.tokens, key_values)
        return kept.lookup(tree) if found else None, [part for part, _ in found.values()], list(read.values())

    def new_key_values(self, tree: PrefixTree, reuse: Reuse | None) -> KeyValues | None:
        """Return an empty cache of the tokens to keep, or None if all are known."""
        if not self._missing:
            return None
        rows = np.unique(np.concatenate([indices for _, indices in self._missing]))
        if not self._recurrent:
            return KeyValues(rows=rows)
        # A question may begin right after the passage; its first token is then predicted by the passage's last one,
        # which is computed again, from the state before it.
        last = np.unique(np.concatenate([indices[-KEPT_STATES:] for _, indices in self._missing]))
        last = last if reuse is None else np.intersect1d(last, reuse.computed)
        return KeyValues(states=RecurrentStates(last), rows=rows)

    def add(self, tree: PrefixTree, key_values: KeyValues) -> None:
        """Give the cache what a pass computed: what `new_key_values` wanted, or keys and values of all tokens."""
        self._known.add(self._added(key_values), self._about)
        self._missing = []

    def _added(self, key_values: KeyValues) -> Iterator[tuple[PrefixKey, PrefixKey | None, KeyValues]]:
        """Yield copies of the new parts, one by one, so that only one is held besides what the cache keeps."""
        for part, indices in self._missing:
            own = indices if key_values.rows is None else np.searchsorted(key_values.rows, indices)
            yield part.key, None if part.header is None else part.header.key, key_values.part(own, indices)

    def _parts(self, sequence: int, regime: int) -> tuple[_Part, ...]:
        context, ends = self._sequences[sequence][0], tuple(self._ends[sequence])
        place = id(context), regime, ends
        if place not in self._split:
            self._split[place] = context, tuple(self._new_parts(context, regime, ends))
        return self._split[place][1]

    def _new_parts(self, context: Tokens, regime: int, ends: tuple[int, ...]) -> Iterator[_Part]:
        tokens = np.asarray(context[: max(ends, default=0)], dtype=np.int64)
        start, header = 0, None
        for end in ends:
            # With where the part begins: the same tokens may have another header, which holds others of them.
            place = start.to_bytes(8, "little") + bytes([regime])
            name = hashlib.blake2b(tokens[:end].astype("<u4").tobytes(), digest_size=20, salt=place)
            digest = HEADER * (header is None) + name.hexdigest()
            header = _Part((self._fingerprint, digest), tokens[start:end].tolist(), start, header)
            start = end
            yield header


def _path(parents: list[int], tree: PrefixTree, leaf: int, part: _Part) -> IntArray:
    """Return the packed indices of a part's tokens in the sequence that ends at a leaf, int64 [part.end - part.start].

    Args:
        parents: the tree's, as a list, since tokens are looked up one after another.
    """
    indices = []
    for depth in range(int(tree.positions[leaf]), part.start - 1, -1):
        if depth < part.end:
            indices.append(leaf)
        leaf = parents[leaf]
    return np.array(indices[::-1], dtype=np.int64)
