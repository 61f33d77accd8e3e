"""The paper's own MoI: 3N random whole orderings, the joint solve, descending."""

import numpy as np
import pytest

from fastreader import Passage, score_permutations
from fastreader.moi import debias, observe
from fastreader.moi.baselines import METHODS, moi_paper

PASSAGES = [Passage(f"{name} says {i}.") for i, name in enumerate(("alpha", "bravo", "carol", "delta"))]


@pytest.mark.parametrize(("n", "orderings"), [(2, 2), (3, 6), (4, 12)])
def test_its_order_is_that_of_the_joint_solve_of_the_joint_likelihood(tiny_reader, n, orderings):
    found = moi_paper(tiny_reader, "which?", PASSAGES[:n], seed=3)
    scores = score_permutations(
        tiny_reader, "which?", PASSAGES[:n], permutations="random", seed=3, score_passages=True, question_only=True
    )
    joint = scores.question_logprobs + scores.passages_logprobs
    utilities = debias(observe(scores, "joint"), method="joint", seed=3)
    np.testing.assert_allclose(observe(scores, "joint").values, joint)
    np.testing.assert_allclose(found.scores, utilities.utility, atol=1e-9)
    assert found.order == sorted(range(n), key=lambda p: -found.scores[p])
    assert found.details["orderings"] == orderings == len(scores.permutations)
    assert "sign" in found.details["flags"] and found.details["identified"] is False
    assert found.stats.computed_tokens == scores.stats.computed_tokens


def test_one_passage_needs_no_orderings(tiny_reader):
    found = METHODS["moi-paper"](tiny_reader, "which?", PASSAGES[:1], seed=0)
    assert (found.order, found.stats.total_tokens) == ([0], 0)
