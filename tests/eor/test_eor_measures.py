"""Measures by hand and against brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastreader.data import Passage
from fastreader.eor import Answers, Document, correctness
from fastreader.eor import measures as m
from fastreader.errors import InputError

# Four questions, three retrievers; the last misses nothing.
CORRECT = np.array([[1, 0, 1], [1, 1, 1], [0, 1, 1], [0, 0, 1]])
NAN = float("nan")


def test_relative_win_ratio_by_hand():
    expected = [[0, 1 / 2, NAN], [1 / 2, 0, NAN], [1, 1, NAN]]
    np.testing.assert_array_equal(m.rwr(CORRECT), expected)
    np.testing.assert_array_equal(m.mrwr(CORRECT), [1 / 2, 1 / 2, 1])  # the undefined ones are left out
    np.testing.assert_array_equal(m.mrlr(CORRECT), [3 / 4, 3 / 4, NAN])


@pytest.mark.parametrize("correct", [[0.5, 1], [[0.5, 1]], [], [[]], [[NAN, 1]]])
def test_correctness_must_be_binary(correct):
    with pytest.raises(InputError, match="correct"):
        m.rwr(correct)


def row(question, texts, documents, right):
    names = [f"r{i}" for i in range(len(texts))]
    kept = [Document(n, [Passage(d)] if d else []) for n, d in zip(names, documents, strict=True)]
    return Answers(question, names, texts, documents=kept, right=right)


ROWS = [
    #      right, from the document;  wrong, from it;              right, nothing retrieved
    row("a", ["Nile", "Cairo", "Nile"], ["the Nile, in Cairo", "Cairo and the Nile", ""], ["The Nile"]),
    #      wrong, not in it;          wrong, from a wrong one;     wrong, nothing retrieved
    row("b", ["Rhine", "Po", "Po"], ["a Danube", "the Po", ""], ["Danube"]),
    #      right by another name;     right, document without it;  one answer is long
    row("c", ["U.S.", "U.S.A", "the land of the free and the brave"], ["the USA", "the states", ""], ["USA", "US"]),
]
RIGHT = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 0]])


def test_errors_by_hand():
    found = m.errors(ROWS, RIGHT)
    assert found.retriever.tolist() == [[0, 0, 1], [0, 1, 1], [0, 1, 1]]
    # "us" is in "usa", so the third question's first answer is from its document.
    assert found.hallucination.tolist() == [[0, 0, 1], [1, 0, 1], [0, 1, 1]]
    assert found.extraction.tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert found.luck.tolist() == [[0, 0, 1], [0, 0, 0], [0, 1, 0]]
    # Eight words as written; without its articles, "land of free and brave", they would be five.
    assert found.kept.tolist() == [True, True, False]
    assert m.errors(ROWS, RIGHT, longest=8).kept.tolist() == [True, True, True]
    assert m.errors(ROWS, RIGHT, longest=7).filtered().luck.shape == (2, 3)
    assert found.rates()["retriever"].tolist() == pytest.approx([0, 2 / 3, 1])


def test_decomposition_residual_counts_non_literal_answers():
    found = m.errors(ROWS, RIGHT)
    parts = m.decomposition(found)
    assert parts.failure.tolist() == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    assert parts.residual.tolist() == [0, 0, 0]
    # Right in other words than the document's, and right though in a document without a right answer.
    odd = [
        row("d", ["NYC", "New York"], ["New York", "New York state"], ["New York City", "NYC", "New York"]),
        row("e", ["Big Apple", "Manhattan"], ["New York", "Manhattan"], ["New York"]),
    ]
    right = np.array([[1, 1], [1, 1]])
    parts = m.decomposition(m.errors(odd, right))
    assert parts.failure.tolist() == [0, 0]
    assert parts.right_outside.tolist() == [2, 0] and parts.right_without.tolist() == [0, 1]
    assert parts.residual.tolist() == [-1, -0.5]


def test_empty_filter_gives_nan_without_warning(recwarn):
    nothing = m.errors(ROWS, RIGHT, longest=0).filtered()
    parts = m.decomposition(nothing)
    for shares in (*nothing.rates().values(), parts.failure, parts.explained, parts.residual):
        assert shares.shape == (3,) and np.isnan(shares).all()
    assert parts.right_outside.tolist() == parts.right_without.tolist() == [0, 0, 0]
    assert all(np.isnan(table).all() for table in m.error_rwr(nothing).values())
    assert not recwarn.list


@given(st.integers(0, 2**31))
def test_eq_4_holds_up_to_counted_exceptions(seed):
    generator = np.random.default_rng(seed)
    missed, invented, right = generator.random((3, 17, 4)) < 0.5
    found = m.Errors(
        missed, invented, ~missed & ~invented & ~right, missed & invented & right, right, np.ones(17, dtype=bool)
    )
    parts = m.decomposition(found)
    np.testing.assert_allclose(parts.residual, -(parts.right_outside + parts.right_without) / 17, atol=1e-12)
    # Without luck and without right answers that are not literal, Eq. 4 is failure = (1 - E_r)(E_h + E_e) + E_r.
    literal = right & ~missed & ~invented
    found = m.Errors(missed, invented, ~missed & ~invented & ~literal, np.zeros_like(missed), literal, found.kept)
    plain = np.where(missed, 1, invented | found.extraction).mean(axis=0)
    np.testing.assert_allclose((~literal).mean(axis=0), plain)
    assert m.decomposition(found).residual.tolist() == [0, 0, 0, 0]


def test_relative_win_ratio_of_errors_by_hand():
    tables = m.error_rwr(m.errors(ROWS, RIGHT))
    # Retriever 1 errs on b and c, which 0 avoids both; 2 errs on all.
    np.testing.assert_array_equal(tables["retriever"], [[NAN, 1, 1], [NAN, 0, 1 / 3], [NAN, 0, 0]])
    np.testing.assert_array_equal(tables["hallucination"], [[0, 1, 2 / 3], [1, 0, 2 / 3], [0, 0, 0]])
    # Only question a, where 0 and 1 both have the answer; 1 takes the wrong part.
    np.testing.assert_array_equal(tables["extraction"], [[NAN, 1, NAN], [NAN, 0, NAN], [NAN, NAN, NAN]])
    # Only question c, where 1 and 2 have E_r and E_h; with themselves 1 is lucky at c and 2 at a.
    np.testing.assert_array_equal(tables["luck"], [[NAN, NAN, NAN], [NAN, 0, NAN], [NAN, 1, 0]])


@given(st.integers(0, 2**31), st.integers(2, 5))
def test_ratios_against_loops(seed, width):
    generator = np.random.default_rng(seed)
    missed, invented, right = generator.random((3, 9, width)) < 0.5
    found = m.Errors(
        missed, invented, ~missed & ~invented & ~right, missed & invented & right, right, np.ones(9, dtype=bool)
    )
    tables = {"correct": m.rwr(right), **m.error_rwr(found)}

    def loop(error, both, i, j):
        above = sum(not error[n, i] and error[n, j] and both[n, i] and both[n, j] for n in range(9))
        below = sum(error[n, j] and both[n, i] and both[n, j] for n in range(9))
        return above / below if below else NAN

    everywhere = np.ones_like(missed)
    for i, j in itertools.product(range(width), repeat=2):
        for name, error, both in (
            ("correct", ~right, everywhere),
            ("retriever", missed, everywhere),
            ("hallucination", invented, everywhere),
            ("extraction", found.extraction, ~missed),
            ("luck", found.luck, missed & invented),
        ):
            np.testing.assert_allclose(tables[name][i, j], loop(error, both, i, j), err_msg=name)
    expected = [np.nanmean(np.r_[np.nan, np.delete(tables["correct"][i], i)]) if not np.isnan(
        np.delete(tables["correct"][i], i)).all() else NAN for i in range(width)]  # fmt: skip
    np.testing.assert_allclose(m.mrwr(right), expected)


@pytest.mark.parametrize(
    ("rows", "correct"),
    [
        (ROWS, RIGHT[:2]),
        (ROWS, RIGHT[:, :2]),
        ([Answers("q", ["a", "b"], ["x", "y"], right=["x"])], [[1, 0]]),
        ([row("q", ["x", "y"], ["x", "y"], [])], [[1, 0]]),
    ],
)
def test_errors_reject_inconsistent_input(rows, correct):
    with pytest.raises(InputError, match=r"correct|documents"):
        m.errors(rows, correct)


@given(st.integers(0, 2**31), st.integers(1, 6))
def test_upper_bound_against_every_ensemble(seed, width):
    right = np.random.default_rng(seed).random((11, width)) < 0.4
    bounds = m.upper_bound(right)
    assert list(bounds) == list(range(1, width + 1))
    for size, values in bounds.items():
        expected = [right[:, list(c)].any(axis=1).mean() for c in itertools.combinations(range(width), size)]
        np.testing.assert_allclose(values, expected)


def test_upper_bound_rejects_too_many_retrievers():
    with pytest.raises(InputError, match="20"):
        m.upper_bound(np.zeros((2, 21)))


def test_measures_of_correctness():
    rows = [Answers("q", ["a", "b", "c"], ["The Nile!", "the river Nile", None], right=["Nile", "Nilus"])]
    assert correctness(rows).tolist() == [[1, 0, 0]]
    assert correctness(rows, "contained").tolist() == [[1, 1, 0]]
    assert correctness(rows, "f1").tolist() == [[1, pytest.approx(2 / 3), 0]]
    seen = []

    def judge(question, answer, right):
        seen.append((question, answer, right))
        return len(answer)

    assert correctness(rows, judge).tolist() == [[9, 14, 0]]
    assert seen[0] == ("q", "The Nile!", ["Nile", "Nilus"])


@pytest.mark.parametrize(
    ("rows", "measure", "expected"),
    [
        ([], "em", "at least one"),
        ([Answers("q", ["a"], ["x"])], "em", "right answers"),
        ([Answers("q", ["a"], ["x"], right=["x"])], "bleu", "bleu"),
        ([Answers("q", ["a"], ["x"], right=["x"])], lambda q, a, r: NAN, "finite number, got nan for 'x'"),
        ([Answers("q", ["a"], ["x"], right=["x"])], lambda q, a, r: None, "finite number, got None for 'x'"),
        # a second row in another order: the text named is the one measured
        (
            [Answers("q", ["a", "b"], ["x", "y"], right=["x"]), Answers("r", ["b", "a"], ["z", "w"], right=["x"])],
            lambda q, a, r: NAN if a == "w" else 1.0,
            "got nan for 'w'",
        ),
    ],
)
def test_invalid_measures_raise(rows, measure, expected):
    with pytest.raises(InputError, match=expected):
        correctness(rows, measure)
