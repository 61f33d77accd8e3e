"""The formulas of App. C.4 by hand and against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastreader.eor.scoring import POOLINGS, majority, maximum, mean, plurality

# Answer 0 is like 1 and 2, 1 like 0 alone, 2 like 0 alone, 3 like nobody.
S = np.array([[0, 0.9, 1, 0.1], [0.9, 0, 0.3, 0.2], [1, 0.3, 0, 0], [0.1, 0.2, 0, 0]])
ALL = np.ones(4, dtype=bool)


def test_by_hand():
    assert mean(S, ALL).tolist() == pytest.approx([2 / 3, 1.4 / 3, 1.3 / 3, 0.1])
    assert maximum(S, ALL).tolist() == [1, 0.9, 1, 0.2]
    # Counts above 0.8: 2, 1, 1, 0 of N = 3; the majority needs 1.5.
    assert majority(S, ALL, 0.8).tolist() == [1, 0, 0, 0]
    assert plurality(S, ALL, 0.8).tolist() == [1, 0, 0, 0]
    # Counts above 0.95: 1, 0, 1, 0.
    assert majority(S, ALL, 0.95).tolist() == [0, 0, 0, 0]
    assert plurality(S, ALL, 0.95).tolist() == [1, 0, 1, 0]
    # Above 0.99, and not equal to it: 1.0 counts, 0.99 would not.
    assert plurality(np.where(S == 1, 0.99, S), ALL, 0.99).tolist() == [1, 1, 1, 1]


def test_by_hand_with_an_answer_that_does_not_vote():
    voters = np.array([True, True, False, True])
    # m = 2 is compared with three voters, the others with two.
    assert mean(S, voters).tolist() == pytest.approx([0.5, 0.55, 1.3 / 3, 0.15])
    assert maximum(S, voters).tolist() == [0.9, 0.9, 1, 0.2]
    assert majority(S, voters, 0.8).tolist() == [1, 1, 0, 0]  # 1 of 2 is half
    assert plurality(S, voters, 0.8).tolist() == [1, 1, 0, 0]
    assert plurality(S, voters, 0.8, candidates=np.array([False, False, True, True])).tolist() == [0, 0, 1, 0]


def test_no_other_voter():
    alone = np.array([False, True, False, False])
    assert mean(S, alone)[1] == maximum(S, alone)[1] == majority(S, alone)[1] == plurality(S, alone)[1] == 0
    assert maximum(S, alone)[0] == 0.9


@given(st.integers(0, 2**31), st.integers(2, 6), st.sampled_from([0.3, 0.8]))
def test_against_loops(seed, width, threshold):
    generator = np.random.default_rng(seed)
    similarity = generator.random((3, width, width)).round(2)
    voters = generator.random((3, width)) < 0.7
    found = {name: function(similarity, voters, threshold) for name, function in POOLINGS.items()}
    for q in range(3):
        heard = [[similarity[q, m, n] for n in range(width) if n != m and voters[q, n]] for m in range(width)]
        counts = [sum(s > threshold for s in row) for row in heard]
        largest = max((counts[m] for m in range(width) if voters[q, m] and heard[m]), default=None)
        for m, row in enumerate(heard):
            assert found["mean"][q, m] == pytest.approx(sum(row) / len(row) if row else 0)
            assert found["max"][q, m] == max(row, default=0)
            assert found["majority"][q, m] == (bool(row) and counts[m] >= len(row) / 2)
            assert found["plurality"][q, m] == (bool(row) and bool(voters[q, m]) and counts[m] == largest)
