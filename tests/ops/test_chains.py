import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastreader.core.tree import PrefixTree
from fastreader.errors import InputError
from fastreader.ops.recurrent.chains import chains, nearest_ancestors


@st.composite
def forests(draw, outside=0):
    """Parents of tokens in depth-first order. Roots are -1, or one of the texts before the tree."""
    path, parent = [], []
    for i in range(draw(st.integers(0, 40))):
        climb = draw(st.sampled_from([0, 0, 0, 1, 2, 5]))
        path = path[: max(len(path) - climb, 0)]
        parent.append(path[-1] if path else -1 - draw(st.integers(0, outside)))
        path.append(i)
    return np.array(parent, dtype=np.int32)


@given(forests(outside=2), st.sampled_from([None, 1, 2, 7]), st.data())
def test_chains_are_runs_without_branches(parent, size, data):
    cuts = data.draw(st.lists(st.integers(0, max(len(parent) - 1, 0)), max_size=3)) if len(parent) else []
    found = chains(parent, size, cuts)
    children = [np.flatnonzero(parent == token).tolist() for token in range(len(parent))]
    tokens = [list(range(a, a + n)) for a, n in zip(found.starts, found.lengths, strict=True)]
    assert [t for chain in tokens for t in chain] == list(range(len(parent)))
    last = {chain[-1]: place for place, chain in enumerate(tokens)}
    for place, chain in enumerate(tokens):
        assert size is None or len(chain) <= size
        for before, after in itertools.pairwise(chain):
            assert children[before] == [after] and before not in cuts
        above = parent[chain[0]]
        assert found.parents[place] == (last[above] if above >= 0 else above)
        assert found.levels[place] == (found.levels[last[above]] + 1 if above >= 0 else 0)
        if size is None and above >= 0:  # a chain is as long as it can be
            assert len(children[above]) > 1 or above in cuts
    assert found.ends.tolist() == [chain[-1] for chain in tokens]


@given(forests(outside=3), st.integers(0, 4))
def test_nearest_ancestors_are_those_of_the_path(parent, count):
    found = nearest_ancestors(parent, count)
    for token in range(len(parent)):
        above, path = token, []
        while (above := parent[above]) >= 0:
            path.append(above)
        row = -2 - above
        before = [-1] * count if above == -1 else [-2 - (row * count + count - 1 - step) for step in range(count)]
        assert found[token].tolist() == [*path, *before][:count]


def test_a_tree_of_prompts_has_few_levels():
    header, bodies = list(range(10)), [[100 + i] * 20 for i in range(4)]
    tree = PrefixTree.build([(header + body, [200 + c, 7, 8]) for body in bodies for c in range(3)])
    found = chains(tree.parent)
    assert len(found) == 1 + 4 + 12
    assert sorted(found.levels) == [0, *[1] * 4, *[2] * 12]


def test_a_million_tokens_of_one_chain_each():
    """Levels are found in as many steps as the depth has binary digits, so a deep tree takes seconds, not hours."""
    spine = 500_000
    parent = np.empty(2 * spine, dtype=np.int64)
    parent[0::2] = np.arange(-2, 2 * spine - 2, 2)
    parent[1::2] = np.arange(0, 2 * spine, 2)
    parent[0] = -1
    found = chains(parent)
    assert len(found) == 2 * spine - 1
    assert found.levels.max() == spine - 1


@pytest.mark.parametrize(("parent", "size", "message"), [([-1, 1], None, "parent"), ([-1, 0], 0, "size")])
def test_bad_input_raises(parent, size, message):
    with pytest.raises(InputError, match=message):
        chains(np.array(parent), size)
