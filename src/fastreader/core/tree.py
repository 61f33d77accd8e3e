"""PrefixTree: many token sequences packed so that every shared prefix is computed once.

S sequences, each a context plus a continuation to score, become one array of T unique tokens in depth-first
order. Three integers per token carry the whole structure: its depth (`positions`), one past the end of its
subtree (`subtree_end`), and the token whose hidden state predicts it (`parent`). Key j is visible to query i
exactly when ``j <= i < subtree_end[j]``: causal attention with an expiry date on every key.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked
from fastreader.core.checks import as_integers, check_int, expect
from fastreader.errors import InputError

Tokens = Sequence[int]
TokenPairs = Sequence[tuple[Tokens, Tokens]]  # (context, continuation)
IntArray = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

_MAX_TOKEN = 2**31 - 1
_COMPARED = 1 << 18  # tokens of sorted sequences that are compared at once


@dataclass(frozen=True)
class TreeStats:
    """Token counts of a tree, with and without sharing.

    Attributes:
        sequences: number of sequences.
        total_tokens: number of tokens in all contexts and continuations, as read without sharing.
        computed_tokens: number of tokens that go through the model.
        scored: number of tokens whose log-likelihood is requested.
        cached_tokens: number of tokens whose keys and values were cached by an earlier call (`Reader.session`).
    """

    sequences: int
    total_tokens: int
    computed_tokens: int
    scored: int
    cached_tokens: int = 0

    @property
    def sharing_ratio(self) -> float:
        """Ratio of total to computed tokens, above 1 if anything is shared."""
        return self.total_tokens / self.computed_tokens if self.computed_tokens else 1.0

    @property
    def saved(self) -> float:
        """Share of the total tokens that is not computed, between 0 and 1."""
        return 1.0 - self.computed_tokens / self.total_tokens if self.total_tokens else 0.0

    def __add__(self, other: TreeStats) -> TreeStats:
        return TreeStats(
            self.sequences + other.sequences,
            self.total_tokens + other.total_tokens,
            self.computed_tokens + other.computed_tokens,
            self.scored + other.scored,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True, eq=False)
class PrefixTree:
    """A packed forest of token sequences.

    Attributes:
        token_ids: int64 [T], the unique tokens in depth-first order.
        positions: int32 [T], depth of each token, which is its position in every sequence that contains it.
        subtree_end: int32 [T], one past the last token of each token's subtree.
        parent: int32 [T], the token whose hidden state predicts this one; -1 for a root.
        sources: int64 [R], packed index whose hidden state predicts ``targets[r]``; pairs are distinct.
        targets: int64 [R], token ids to score.
        pairs: int64 [P], index of the (source, target) pair of each scored token, sequence by sequence.
        offsets: int64 [S + 1]; the scored tokens of sequence s are ``pairs[offsets[s]:offsets[s + 1]]``.
        leaves: int64 [S], packed index of the last input of each sequence.
        sequence_ids: int64 [S], place of each sequence among those passed in.
        stats: token counts.
    """

    token_ids: IntArray
    positions: Int32Array
    subtree_end: Int32Array
    parent: Int32Array
    sources: IntArray
    targets: IntArray
    pairs: IntArray
    offsets: IntArray
    leaves: IntArray
    sequence_ids: IntArray
    stats: TreeStats

    @classmethod
    @checked
    def build(cls, sequences: Iterable[tuple[Tokens, Tokens]]) -> PrefixTree:
        """Pack (context, continuation) pairs of token ids into one tree.

        The last token of a continuation only needs predicting, so it enters the tree only if another sequence
        continues from it. A sequence without a continuation is packed whole and scores nothing.

        Args:
            sequences: pairs of token id sequences; a context holds at least one token (nothing predicts the
                first token of a text: put a beginning-of-text token there).

        Returns:
            The tree; ``sequence_ids`` is 0..S-1 in the same order.

        Raises:
            InputError: if there is no sequence, a context is empty, or an id is not in [0, 2**31).
        """
        pairs = list(sequences)
        expect(bool(pairs), "sequences", "at least one", pairs)
        (tree,) = partition(pairs, None)
        return tree

    def __len__(self) -> int:
        return len(self.token_ids)

    @checked
    def path(self, index: int) -> list[int]:
        """Return the packed indices from the root to `index`, both included.

        Raises:
            InputError: if `index` is not in [0, T).
        """
        check_int("index", index, 0, len(self) - 1)
        steps = [index]
        while self.parent[steps[-1]] >= 0:
            steps.append(int(self.parent[steps[-1]]))
        return steps[::-1]


@dataclass(frozen=True)
class _Sorted:
    """Sequences in lexicographic order of their inputs, flattened."""

    order: IntArray  # [S] index of the i-th sequence
    flat: IntArray  # [sum of lengths] inputs, sorted sequences one after another
    starts: IntArray  # [S]
    lengths: IntArray  # [S] number of inputs
    shared: IntArray  # [S] longest common prefix with the previous sequence, 0 for the first


def partition(
    sequences: Iterable[tuple[Tokens, Tokens]], max_batch_tokens: int | None, reserve: int = 0
) -> list[PrefixTree]:
    """Pack sequences into trees of at most `max_batch_tokens` tokens that recompute as few tokens as possible.

    A cut before a sorted sequence computes again the prefix that it shares with the previous one. Dynamic
    programming over the sorted sequences finds the cheapest cuts exactly, in linear time, and among equal
    cuts the fewest trees. A sequence longer than `max_batch_tokens` gets its own tree.

    Args:
        sequences: (context, continuation) pairs of token ids, as `PrefixTree.build` takes them.
        max_batch_tokens: at most this many tokens computed in one tree; None for one tree.
        reserve: number of further tokens that every sequence takes, for the text generated after it.

    Returns:
        Trees whose `sequence_ids` together are 0..S-1.

    Raises:
        InputError: if `PrefixTree.build` raises it, or `max_batch_tokens` < 1.
    """
    check_int("max_batch_tokens", max_batch_tokens, optional=True)
    pairs = list(sequences)
    expect(bool(pairs), "PrefixTree", "at least one sequence", pairs)
    arrays, contexts = [], np.empty(len(pairs), dtype=np.int64)
    # By identity: candidates share a context's list, and prompts a candidate's. The lists are kept, since another one
    # could get the identity of one that is gone.
    converted: dict[int, tuple[Tokens, IntArray]] = {}
    for i, (context, continuation) in enumerate(pairs):
        arrays.append(_as_array(i, context, continuation, converted))
        contexts[i] = len(context)
    ordered = _sort(arrays, contexts)
    trees = []
    for first, last in itertools.pairwise(_cuts(ordered, max_batch_tokens, reserve)):
        trees.append(_pack(ordered, arrays, contexts, first, last))
    return trees


def _as_array(
    index: int, context: Tokens, continuation: Tokens, converted: dict[int, tuple[Tokens, IntArray]]
) -> IntArray:
    if len(context) == 0:
        raise InputError(
            f"PrefixTree: sequences[{index}]: the context is empty; nothing predicts the first token of a text, "
            "so put a beginning-of-text token there"
        )
    parts = []
    for tokens in (context, continuation):
        if len(tokens) == 0:
            continue
        if id(tokens) not in converted:
            ids = as_integers(tokens)
            name = f"PrefixTree: sequences[{index}]"
            expect(ids.dtype.kind in "iu" and ids.ndim == 1, name, "a flat list of integers", ids)
            low, high = int(ids.min()), int(ids.max())
            expect(low >= 0 and high <= _MAX_TOKEN, name, "token ids in [0, 2**31)", low if low < 0 else high)
            converted[id(tokens)] = tokens, ids.astype(np.int64, copy=False)
        parts.append(converted[id(tokens)][1])
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _sort(arrays: list[IntArray], contexts: IntArray) -> _Sorted:
    given = np.array(list(map(len, arrays)), dtype=np.int64)
    lengths = np.where(given > contexts, given - 1, given)
    inputs, keys = [], []
    for array, length in zip(arrays, lengths.tolist(), strict=True):
        inputs.append(array[:length])
        # Big-endian bytes compare like the integers they hold, so a comparison is one memcmp.
        keys.append(inputs[-1].astype(">u4").tobytes())
    order = np.array(sorted(range(len(arrays)), key=keys.__getitem__), dtype=np.int64)
    lengths = lengths[order]
    flat = np.concatenate(list(map(inputs.__getitem__, order)))
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    shared = np.zeros(len(starts), dtype=np.int64)
    overlap = np.minimum(lengths[:-1], lengths[1:])
    ends, first = np.cumsum(overlap), 0
    while first < len(overlap):  # in parts, since this takes several times the memory of the tokens
        last = max(first + 1, int(np.searchsorted(ends, ends[first] - overlap[first] + _COMPARED, "right")))
        part = overlap[first:last]
        begins = np.cumsum(part) - part
        depth = np.arange(part.sum()) - np.repeat(begins, part)
        one = np.repeat(starts[first:last], part) + depth
        other = np.repeat(starts[first + 1 : last + 1], part) + depth
        depth[flat[one] == flat[other]] = _MAX_TOKEN
        shared[first + 1 : last + 1] = np.minimum(np.minimum.reduceat(depth, begins), part)
        first = last
    return _Sorted(order, flat, starts, lengths, shared)


def _cuts(ordered: _Sorted, max_batch_tokens: int | None, reserve: int) -> list[int]:
    """Return the bounds of the groups of sorted sequences: least recomputation, then fewest groups.

    ``best[b]`` is the least cost of grouping the first b sequences. A group a..b-1 computes
    ``length[a] + sum(new[a+1..b-1])`` tokens, which only grows when a moves left, so the admissible starts of
    b are a window that moves right, kept in a deque with the cost up to each start, least first.
    """
    count = len(ordered.order)
    new = ordered.lengths - ordered.shared + reserve
    if max_batch_tokens is None or new.sum() <= max_batch_tokens:
        return [0, count]
    total = np.concatenate([[0], np.cumsum(new)]).tolist()
    shared, lengths = ordered.shared.tolist(), (ordered.lengths + reserve).tolist()
    best: list[tuple[int, int]] = [(0, 0)]
    came_from = [0]
    window: deque[tuple[tuple[int, int], int]] = deque()  # (cost, start)
    for last in range(count):
        start_cost = (best[last][0] + shared[last], best[last][1] + 1)
        while window and window[-1][0] >= start_cost:
            window.pop()
        window.append((start_cost, last))
        cost, first = window[0]
        while first < last and lengths[first] + total[last + 1] - total[first + 1] > max_batch_tokens:
            window.popleft()
            cost, first = window[0]
        best.append(cost)
        came_from.append(first)
    bounds = [count]
    while bounds[-1] > 0:
        bounds.append(came_from[bounds[-1]])
    return bounds[::-1]


def _pack(ordered: _Sorted, arrays: list[IntArray], contexts: IntArray, first: int, last: int) -> PrefixTree:
    """Return the tree of the sorted sequences first..last-1."""
    lengths = ordered.lengths[first:last]
    shared = ordered.shared[first:last].copy()
    shared[0] = 0
    new = lengths - shared
    begins = np.concatenate([[0], np.cumsum(new)])
    size = int(begins[-1])

    depth = np.arange(size) - np.repeat(begins[:-1] - shared, new)
    token_ids = ordered.flat[np.repeat(ordered.starts[first:last], new) + depth]
    parent = np.arange(-1, size - 1, dtype=np.int32)
    subtree_end = np.full(size, size, dtype=np.int32)

    ids = ordered.order[first:last]
    members = list(map(arrays.__getitem__, ids))
    given = np.array(list(map(len, members)), dtype=np.int64)
    scored = np.maximum(given - contexts[ids], 0)
    source_parts: list[IntArray] = []
    target_parts: list[IntArray] = []
    leaves = np.empty(last - first, dtype=np.int64)
    open_at = np.empty(int(lengths.max()), dtype=np.int64)  # packed index of the open token at each depth
    opened = 0
    for i, (begin, keep, length, count) in enumerate(
        zip(begins.tolist(), shared.tolist(), lengths.tolist(), scored.tolist(), strict=False)
    ):
        subtree_end[open_at[keep:opened]] = begin
        if length > keep:
            parent[begin] = open_at[keep - 1] if keep else -1
            open_at[keep:length] = np.arange(begin, begin + length - keep)
        opened = length
        leaves[i] = open_at[length - 1]
        start = int(contexts[ids[i]]) - 1
        source_parts.append(open_at[start : start + count].copy())
        target_parts.append(members[i][start + 1 :])

    by_id = np.argsort(ids, kind="stable")
    sources = np.concatenate(list(map(source_parts.__getitem__, by_id)))
    targets = np.concatenate(list(map(target_parts.__getitem__, by_id)))
    counts = scored[by_id]
    pair_keys, pairs = np.unique(sources << 32 | targets, return_inverse=True)
    stats = TreeStats(
        sequences=last - first,
        total_tokens=int(given.sum()),
        computed_tokens=size,
        scored=int(counts.sum()),
    )
    return PrefixTree(
        token_ids=token_ids,
        positions=depth.astype(np.int32),
        subtree_end=subtree_end,
        parent=parent,
        sources=pair_keys >> 32,
        targets=pair_keys & 0xFFFFFFFF,
        pairs=pairs.reshape(-1).astype(np.int64),
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        leaves=leaves[by_id],
        sequence_ids=ids[by_id],
        stats=stats,
    )
