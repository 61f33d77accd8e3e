import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastreader.moi.quantities.utilities import descending, matched

small = st.integers(2, 5).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(-5, 5, width=16), min_size=n, max_size=n),
        st.integers(1, n).flatmap(
            lambda length: st.lists(st.floats(-5, 5, width=16), min_size=length, max_size=length)
        ),
    )
)


@settings(deadline=None)
@given(small)
def test_matched_is_the_best_of_all_orders(case):
    utility, bias = np.array(case[0]), np.array(case[1])
    padded = np.concatenate([bias, np.zeros(len(utility) - len(bias))])
    order = matched(utility, bias)
    assert sorted(order.tolist()) == list(range(len(utility)))
    most = max(float(utility[list(o)] @ padded) for o in itertools.permutations(range(len(utility))))
    assert float(utility[order] @ padded) == pytest.approx(most, abs=1e-9)


@settings(deadline=None)
@given(st.permutations(range(6)), st.permutations(range(6)), st.sampled_from([-3.0, -0.1, 0.2, 5.0]))
def test_matched_depends_on_neither_sign_nor_size_nor_shift(u, d, c):
    utility, bias = np.array(u, dtype=float), np.array(d, dtype=float)
    assert (matched(utility / c + 7, c * bias - 2) == matched(utility, bias)).all()


def test_of_a_decreasing_bias_matched_is_descending():
    utility = np.array([0.3, 2.0, -1.0, 0.9])
    assert (matched(utility, np.array([0.7, 0.2, -0.3, -0.6])) == descending(utility)).all()


def test_ties_keep_the_retrievers_order():
    assert descending(np.zeros(4)).tolist() == [0, 1, 2, 3]
    assert matched(np.zeros(4), np.array([-0.5, 0.9, -0.2, -0.2])).tolist() == [0, 1, 2, 3]
    assert matched(np.array([1.0, 2.0, 1.0]), np.array([-0.7, 0.0, 0.7])).tolist() == [0, 2, 1]
    assert matched(np.array([3.0, 2.0, 1.0]), np.zeros(3)).tolist() == [0, 1, 2]
