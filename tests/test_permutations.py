import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastreader import permutations as pm
from fastreader.core.tree import PrefixTree
from fastreader.errors import InputError

EVERY_NAME = ["identity", "cyclic", "cyclic_reversed", "random", "latin", "prefix_sharing"]


def places(design):
    """How often each passage is at each place: [passages, places]."""
    counts = np.zeros((design.n, design.length), dtype=int)
    for row in design.permutations:
        counts[row, np.arange(design.length)] += 1
    return counts


def computed_by_tree(design, tokens_each=3):
    """Tokens that a prefix tree computes when every passage is a few tokens."""
    rows = [[p * tokens_each + t for p in row for t in range(tokens_each)] for row in design.permutations.tolist()]
    return PrefixTree.build((row, []) for row in rows).stats.computed_tokens


@pytest.mark.parametrize("name", EVERY_NAME)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 13])
def test_every_design(name, n):
    design = pm.resolve(name, n, seed=3)
    assert design.permutations.dtype == np.int64
    assert not design.permutations.flags.writeable
    assert (design.n, design.length, design.name) == (n, n, name)
    assert (np.sort(design.permutations, axis=1) == np.arange(n)).all()
    assert len({tuple(row) for row in design.permutations.tolist()}) == len(design)
    assert design.given == len(design) * n
    assert computed_by_tree(design) == 3 * design.computed
    assert (pm.resolve(name, n, seed=3).permutations == design.permutations).all()
    if name not in ("identity", "random"):
        assert (places(design) == len(design) // n).all()


def test_cyclic():
    assert pm.cyclic(4).permutations.tolist() == [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2]]
    assert pm.cyclic(1).permutations.tolist() == [[0]]
    assert pm.cyclic(2).permutations.tolist() == [[0, 1], [1, 0]]


def test_cyclic_reversed():
    assert pm.cyclic_reversed(3).permutations.tolist() == [
        [0, 1, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
        [0, 2, 1],
        [1, 0, 2],
    ]
    assert [len(pm.cyclic_reversed(n)) for n in (1, 2, 3, 6)] == [1, 2, 6, 12]


def test_random_counts():
    assert [len(pm.random(n)) for n in (1, 2, 3, 4, 10)] == [1, 2, 6, 12, 30]
    for count in (1, 11, 12, 13, 23, 24):
        assert len(pm.random(4, count)) == count
    assert len(pm.random(60, 5)) == 5
    with pytest.raises(InputError, match="random: count: expected an integer from 1 to 6, got 7"):
        pm.random(3, 7)
    with pytest.raises(InputError, match="got 0"):
        pm.random(3, 0)


@pytest.mark.parametrize("count", [2, 5])
def test_random_is_uniform(count):
    # Both ways of drawing: by rejection (2 of 6) and by shuffling all (5 of 6).
    draws = [tuple(row) for seed in range(1200) for row in pm.random(3, count, seed).permutations.tolist()]
    counts = np.array([draws.count(row) for row in itertools.permutations(range(3))])
    expected = 1200 * count / 6
    assert (abs(counts - expected) < 5 * math.sqrt(expected)).all()


@given(st.integers(1, 9), st.data())
@settings(deadline=None, max_examples=50)
def test_latin(n, data):
    squares = data.draw(st.integers(1, min(math.factorial(n - 1), 7)))
    design = pm.latin(n, squares, data.draw(st.integers(0, 99)))
    assert len(design) == squares * n
    for square in design.permutations.reshape(squares, n, n):
        assert (np.sort(square, axis=0) == np.arange(n)[:, None]).all()
        assert (np.sort(square, axis=1) == np.arange(n)).all()


def test_latin_squares_run_out():
    assert len(pm.latin(4, 6)) == 24
    with pytest.raises(InputError, match="latin: squares: expected an integer from 1 to 2, got 3"):
        pm.latin(3, 3)


@given(st.integers(1, 9), st.data())
@settings(deadline=None, max_examples=50)
def test_prefix_sharing_is_balanced_and_distinct(n, data):
    times = data.draw(st.integers(1, 1 + (n - 1) * (n - 2) // 2))
    design = pm.prefix_sharing(n, times * n, data.draw(st.integers(0, 99)))
    assert len(design) == times * n
    assert (places(design) == times).all()


def test_prefix_sharing_counts():
    assert [len(pm.prefix_sharing(n)) for n in (1, 2, 3, 4, 10)] == [1, 2, 6, 12, 30]
    with pytest.raises(InputError, match="count: expected a multiple of n = 5 for balance, got 12"):
        pm.prefix_sharing(5, 12)
    with pytest.raises(InputError, match=r"got 20"):
        pm.prefix_sharing(4, 20)
    with pytest.raises(InputError, match=r"got 0"):
        pm.prefix_sharing(4, 0)


@pytest.mark.parametrize("n", [*range(2, 11), 20])
@pytest.mark.parametrize("times", [2, 3, 4])
def test_prefix_sharing_identifies_the_model(n, times):
    count = min(times * n, n * (1 + (n - 1) * (n - 2) // 2))
    for seed in range(3):
        assert pm.model_rank(pm.prefix_sharing(n, count, seed), seed) == 2 * n - 2


@pytest.mark.parametrize("n", [3, 4, 5, 6, 9])
def test_rank_is_that_of_the_scores(n):
    # Finite differences of the model itself, both constraints imposed by reparametrisation.
    rng = np.random.default_rng(0)
    design = pm.prefix_sharing(n)

    def scores(x):
        bias = np.concatenate([[1 - x[: n - 1].sum()], x[: n - 1]])
        return x[n - 1 :][design.permutations] @ bias

    point = rng.standard_normal(2 * n - 1)
    steps = np.eye(2 * n - 1) * 1e-5
    jacobian = np.stack([scores(point + step) - scores(point - step) for step in steps], axis=1) / 2e-5
    assert np.linalg.matrix_rank(jacobian, tol=1e-6) == 2 * n - 2 == pm.model_rank(design)


def test_ranks_known_for_the_other_designs():
    # MoI's designs at N = 6, where 2N-1 = 11 parameters are asked for.
    assert pm.model_rank(pm.random(6)) == 10
    assert pm.model_rank(pm.cyclic(6)) == 6
    assert pm.model_rank(pm.cyclic_reversed(6)) == 8
    # The first three places: 2 + 6 parameters.
    assert pm.model_rank(pm.pruned(pm.random(6), 3)) == 8
    assert pm.model_rank(pm.pruned(pm.cyclic(6), 3)) == 6
    assert pm.model_rank(pm.cyclic(1)) == 1


@pytest.mark.parametrize(("n", "factor"), [(5, 1.1), (6, 1.25), (8, 1.5), (10, 1.7), (20, 2.2)])
def test_prefix_sharing_computes_less_than_random(n, factor):
    for seed in range(5):
        shared, random = pm.prefix_sharing(n, seed=seed), pm.random(n, seed=seed)
        assert len(shared) == len(random)
        assert shared.computed == n * (n + 5)
        assert random.computed >= factor * shared.computed
        assert computed_by_tree(random) >= factor * computed_by_tree(shared)


def test_explicit():
    assert pm.explicit([[2, 0], [1, 2]], 3).permutations.tolist() == [[2, 0], [1, 2]]
    given_array = np.array([[0, 1]], dtype=np.uint8)
    design = pm.explicit(given_array, 2)
    given_array[:] = 0
    assert design.permutations.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[0, 1, 2], [0, 1, 1]], r"row 1: expected each passage once, got \[0, 1, 1\]"),
        ([[0, 1, 2], [0, 1, 3]], r"row 1: expected passages in \[0, 3\), got 3"),
        ([[0, -1, 2]], r"row 0: expected passages in \[0, 3\), got -1"),
        ([[0, 1, 2], [2, 1, 0], [0, 1, 2]], r"row 2: expected a row different from row 0, got \[0, 1, 2\]"),
        ([[0, 1, 2], [0, 1]], "row 1: expected 3 places as in row 0, got 2"),
        ([[0, 1, 2, 0]], "at most 3 places for 3 passages, got 4"),
        ([[0.0, 1.0, 2.0]], r"row 0: expected a list of integers, got \[0.0, 1.0, 2.0\]"),
        ([[0, 1, 2], [False, True, True]], "row 1: expected a list of integers"),
        ([[0, 1, 2], "012"], "row 1: expected a list of integers, got '012'"),
        ([[0, 1, 2], [0, [1], 2]], "row 1: expected a list of integers"),
        ([0, 1, 2], "row 0: expected a list of integers, got 0"),
        ([], r"at least one of each, got int64 \[0, 0\]"),
        ([[]], r"at least one of each, got float64 \[1, 0\]"),
        (np.eye(3), r"expected integers \[M orderings, L places\], .* got float64 \[3, 3\]"),
        (np.arange(3), r"got int64 \[3\]"),
        (None, r"got object \[\]"),
    ],
)
def test_explicit_errors(rows, expected):
    with pytest.raises(InputError, match=expected):
        pm.explicit(rows, 3)


@given(st.integers(1, 7), st.data())
@settings(deadline=None, max_examples=60)
def test_explicit_accepts_all_and_only_distinct_partial_orderings(n, data):
    length = data.draw(st.integers(1, n))
    value = st.integers(-1, n)
    rows = data.draw(st.lists(st.lists(value, min_size=length, max_size=length), min_size=1, max_size=3))
    right = all(len(set(r)) == length and min(r) >= 0 and max(r) < n for r in rows)
    if right and len({tuple(r) for r in rows}) == len(rows):
        assert pm.explicit(rows, n).permutations.tolist() == rows
    else:
        with pytest.raises(InputError, match=r"permutations: row \d"):
            pm.explicit(rows, n)


def test_pruned():
    design = pm.pruned(pm.cyclic(5), 2)
    assert design.permutations.tolist() == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 0]]
    assert (design.n, design.length, design.name, design.made) == (5, 2, "cyclic[:2]", {"length": 2})
    assert (places(design) == 1).all()
    repeated = pm.pruned(pm.explicit([[2, 0, 1], [0, 1, 2], [2, 1, 0], [0, 2, 1]], 3), 1)
    assert repeated.permutations.tolist() == [[2], [0]]
    assert pm.pruned(pm.cyclic(3), 3).permutations.tolist() == pm.cyclic(3).permutations.tolist()
    for length in (0, 6):
        with pytest.raises(InputError, match=f"pruned: length: expected an integer from 1 to 5, got {length}"):
            pm.pruned(pm.cyclic(5), length)


def test_variable_length():
    # softmax([ln 6, ln 3, ln 1]) = .6, .3, .1
    scores = np.log([6, 3, 1])
    assert [pm.variable_length(scores, s) for s in (0.5, 0.61, 0.89, 0.91, 1.0)] == [1, 2, 2, 3, 3]
    assert pm.variable_length(scores) in (2, 3)
    assert pm.variable_length([1000.0, 0.0, 0.0]) == 1
    assert pm.variable_length([1000.0, 0.0, 0.0], share=1) == 3
    assert pm.variable_length([0.0, 1000.0, 0.0]) == 2
    assert pm.variable_length([20.0, 15.0, 14.0], temperature=100) == 3
    assert pm.variable_length([3.0], 0.1) == 1


@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=12),
    st.floats(0.01, 1),
    st.floats(0.1, 100),
    st.floats(-100, 100),
)
def test_variable_length_holds_the_share(scores, share, temperature, shift):
    length = pm.variable_length(scores, share, temperature)
    weights = np.exp((np.array(scores) - max(scores)) / temperature)
    mass = np.cumsum(weights) / weights.sum()
    assert 1 <= length <= len(scores)
    assert mass[length - 1] >= share - 1e-12
    assert share == 1 or length == 1 or mass[length - 2] < share + 1e-12


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (([],), "scores: expected finite numbers"),
        (([1.0, float("nan")],), "scores: expected finite numbers"),
        (([[1.0]],), "scores: expected finite numbers"),
        (([1.0], 0.0), "share: expected a finite number above 0 and at most 1, got 0.0"),
        (([1.0], 1.1), "got 1.1"),
        (([1.0], 0.5, 0.0), "temperature: expected a finite number above 0, got 0.0"),
    ],
)
def test_variable_length_errors(arguments, expected):
    with pytest.raises(InputError, match=expected):
        pm.variable_length(*arguments)


@pytest.mark.parametrize("make", [pm.random, pm.latin, pm.prefix_sharing])
def test_counts_and_seeds_are_whole_numbers(make):
    for value in ("3", 2.5, True):
        with pytest.raises(InputError, match=f"(count|squares): expected an integer.*, got {value!r}"):
            make(5, value)
    for seed in (-1, 1.5, None):
        with pytest.raises(InputError, match=f"seed: expected an integer.*, got {seed!r}"):
            make(5, seed=seed)


def test_resolve():
    assert pm.resolve("random:12", 5, seed=2).made == {"count": 12, "seed": 2}
    assert pm.resolve("latin:2", 5).made == {"squares": 2, "seed": 0}
    assert len(pm.resolve("prefix-sharing:10", 5)) == 10
    design = pm.latin(4)
    assert pm.resolve(design, 4) is design
    assert pm.resolve(lambda n: [list(range(n))[::-1]], 3).permutations.tolist() == [[2, 1, 0]]
    assert pm.resolve(pm.cyclic, 3).name == "cyclic"
    assert pm.resolve([[1, 0]], 2).name == "explicit"
    assert pm.resolve(np.array([[1, 0]]), 3).length == 2


@pytest.mark.parametrize("spec", ["", "sorted", "cyclic:3", "random:", "random:x", "random:-1", "latin:1.5"])
def test_resolve_names_the_choices(spec):
    with pytest.raises(InputError, match=r"expected one of identity, cyclic, .*prefix_sharing.* got") as raised:
        pm.resolve(spec, 4)
    assert repr(spec) in str(raised.value)


def test_resolve_errors():
    with pytest.raises(InputError, match="expected a design for 4 passages, got 'cyclic for 3'"):
        pm.resolve(pm.cyclic(3), 4)
    for n in (0, -1, True, 2.0):
        for spec in (*EVERY_NAME, [[0]]):
            with pytest.raises(InputError, match="permutations: n: expected an integer from 1 to 2000, got "):
                pm.resolve(spec, n)
