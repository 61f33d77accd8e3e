import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastreader.core.tree import PrefixTree, partition
from fastreader.errors import InputError

tokens = st.lists(st.integers(0, 2), max_size=6)
sequence_lists = st.lists(st.tuples(tokens.filter(len), tokens), min_size=1, max_size=12)


def inputs(context, continuation):
    """The tokens a sequence puts through the model."""
    return context + continuation[:-1] if continuation else context


def naive_trie(sequences):
    """Every distinct non-empty prefix of the inputs."""
    return {tuple(inputs(*s)[:n]) for s in sequences for n in range(1, len(inputs(*s)) + 1)}


def text_of(tree, index):
    return tuple(tree.token_ids[i] for i in tree.path(index))


@given(sequence_lists)
def test_nodes_are_the_distinct_prefixes(sequences):
    tree = PrefixTree.build(sequences)
    prefixes = [text_of(tree, i) for i in range(len(tree))]
    assert len(set(prefixes)) == len(prefixes)
    assert set(prefixes) == naive_trie(sequences)
    assert [len(p) - 1 for p in prefixes] == tree.positions.tolist()


@given(sequence_lists)
def test_visible_keys_are_the_ancestors_in_a_naive_trie(sequences):
    tree = PrefixTree.build(sequences)
    prefixes = [text_of(tree, i) for i in range(len(tree))]
    for i, mine in enumerate(prefixes):
        visible = {j for j in range(len(tree)) if j <= i < tree.subtree_end[j]}
        assert visible == {j for j, other in enumerate(prefixes) if mine[: len(other)] == other}


@given(sequence_lists)
def test_every_sequence_is_recovered(sequences):
    tree = PrefixTree.build(sequences)
    for s, (context, continuation) in enumerate(sequences):
        assert text_of(tree, tree.leaves[s]) == tuple(inputs(context, continuation))
        pairs = tree.pairs[tree.offsets[s] : tree.offsets[s + 1]]
        assert tree.targets[pairs].tolist() == continuation
        for step, source in enumerate(tree.sources[pairs]):
            assert text_of(tree, source) == tuple(context + continuation[:step])


@given(sequence_lists)
def test_stats_count(sequences):
    stats = PrefixTree.build(sequences).stats
    assert stats.sequences == len(sequences)
    assert stats.total_tokens == sum(len(c) + len(k) for c, k in sequences)
    assert stats.computed_tokens == len(naive_trie(sequences))
    assert stats.scored == sum(len(k) for _, k in sequences)
    assert stats.sharing_ratio == stats.total_tokens / stats.computed_tokens
    assert stats.saved == pytest.approx(1 - stats.computed_tokens / stats.total_tokens)


@given(sequence_lists, st.randoms())
def test_order_of_requests_changes_only_the_order_of_results(sequences, random):
    shuffled = sequences[:]
    random.shuffle(shuffled)
    a, b = PrefixTree.build(sequences), PrefixTree.build(shuffled)
    for name in ("token_ids", "positions", "subtree_end", "parent", "sources", "targets"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def brute_force_cost(sequences, budget):
    """Least tokens over all ways to cut the sorted sequences, budget kept except by single sequences."""
    ordered = sorted(sequences, key=lambda s: inputs(*s))
    best = {0: 0}
    for last in range(1, len(ordered) + 1):
        options = []
        for first in range(last):
            size = len(naive_trie(ordered[first:last]))
            if size <= budget or last - first == 1:
                options.append(best[first] + size)
        best[last] = min(options)
    return best[len(ordered)]


@settings(max_examples=200)
@given(sequence_lists, st.integers(1, 20))
def test_split_recomputes_as_little_as_possible(sequences, budget):
    trees = partition(sequences, budget)
    ids = sorted(i for tree in trees for i in tree.sequence_ids)
    assert ids == list(range(len(sequences)))
    for tree in trees:
        assert (
            len(tree) <= budget
            or len({tuple(inputs(*sequences[i])) for i in tree.sequence_ids}) == 1
            or (len(tree.sequence_ids) == 1)
        )
        own = PrefixTree.build([sequences[i] for i in tree.sequence_ids])
        np.testing.assert_array_equal(own.subtree_end, tree.subtree_end)
        np.testing.assert_array_equal(own.token_ids, tree.token_ids)
    assert sum(len(tree) for tree in trees) == brute_force_cost(sequences, budget)


def test_hand_example():
    # 5 6 7 [8]; 5 6 9 [1 2]; 5 6 9 [1 2] again; 5 6 9 1 2 [3]; 4 [4]
    tree = PrefixTree.build(
        [([5, 6, 7], [8]), ([5, 6, 9], [1, 2]), ([5, 6, 9], [1, 2]), ([5, 6, 9, 1, 2], [3]), ([4], [4])]
    )
    assert tree.token_ids.tolist() == [4, 5, 6, 7, 9, 1, 2]
    assert tree.positions.tolist() == [0, 0, 1, 2, 2, 3, 4]
    assert tree.subtree_end.tolist() == [1, 7, 7, 4, 7, 7, 7]
    assert tree.parent.tolist() == [-1, -1, 1, 2, 2, 4, 5]
    assert tree.stats.total_tokens == 4 + 5 + 5 + 6 + 2


def test_a_million_tokens():
    rng = np.random.default_rng(0)
    sequences = []
    for _ in range(100):
        body = rng.integers(0, 49152, 990)
        sequences += [(body, rng.integers(0, 49152, 10)) for _ in range(10)]
    tree = PrefixTree.build(sequences)
    assert tree.stats.total_tokens == 1_000_000
    assert len(tree) == 100 * (990 + 10 * 9)


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([], "at least one"),
        ([([], [1])], "sequences\\[0\\]: the context is empty"),
        ([([1], [2]), ([], [])], "sequences\\[1\\]: the context is empty"),
        ([([-1], [2])], r"\[0, 2\*\*31\)"),
        ([([2**31], [2])], r"\[0, 2\*\*31\)"),
        ([([0.5], [2])], "an integer"),
    ],
)
def test_bad_sequences_are_rejected(sequences, message):
    with pytest.raises(InputError, match=message):
        PrefixTree.build(sequences)


class Fresh:
    """A pair that makes new lists each time, so that later lists get the identities of earlier ones."""

    def __init__(self, *pair):
        self.pair = pair

    def __iter__(self):
        return map(list, self.pair)


def test_lists_that_live_no_longer_than_their_pair_are_told_apart():
    pairs = [([i, i + 1, i + 2], [i + 3]) for i in range(0, 400, 4)]
    (tree,) = partition([Fresh(*pair) for pair in pairs], None)
    (want,) = partition(pairs, None)
    assert (tree.token_ids == want.token_ids).all() and (tree.targets == want.targets).all()


def test_bad_budget_is_rejected():
    with pytest.raises(InputError, match="max_batch_tokens"):
        partition([([1], [2])], 0)
