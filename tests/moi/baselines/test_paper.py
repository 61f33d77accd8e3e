"""The paper's own MoI: 3N random whole orderings, the joint solve, descending."""

import itertools

import numpy as np
import pytest
from scipy.stats import kendalltau

from fastreader import Passage, score_permutations
from fastreader.errors import InputError
from fastreader.moi import Observations, debias, observe
from fastreader.moi.baselines import METHODS, moi_paper
from fastreader.moi.baselines.paper import SIGNS, agreement_of
from fastreader.moi.quantities.utilities import descending
from fastreader.moi.solve.joint import solve, turned

PASSAGES = [Passage(f"{name} says {i}.") for i, name in enumerate(("alpha", "bravo", "carol", "delta"))]


@pytest.mark.parametrize(("n", "orderings"), [(2, 2), (3, 6), (4, 12)])
def test_its_order_is_that_of_the_joint_solve_of_the_joint_likelihood(tiny_reader, n, orderings):
    found = moi_paper(tiny_reader, "which?", PASSAGES[:n], seed=3, sign="as_solved")
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


def simulated(noise, seed, questions=40):
    """Questions of 5 passages: a bias that falls as in the paper's Figure 6, and noise relative to the scores."""
    rng = np.random.default_rng(seed)
    bias = np.array([0.34, 0.24, 0.17, 0.14, 0.11])
    for question in range(questions):
        utility = rng.normal(size=5)
        rows = np.array([rng.permutation(5) for _ in range(15)])
        values = utility[rows] @ bias
        values += noise * values.std() * rng.normal(size=15)
        qg = utility + 0.3 * rng.normal(size=5)  # query likelihoods, whose correlation with the utilities is 0.96
        yield utility, qg, solve(Observations(values, rows, 5, "joint"), seed=question)


@pytest.mark.parametrize(("noise", "bar"), [(0.0, 0.95), (0.5, 0.75)])
@pytest.mark.long(keep=1)
def test_each_rule_for_the_sign_finds_the_order_of_simulated_readers(noise, bar):
    pooled = np.array([0.5, 0.1, -0.1, -0.2, -0.3])
    taus = {sign: [] for sign in SIGNS}
    for utility, qg, found in itertools.chain(simulated(noise, 0), simulated(noise, 1)):
        for sign in SIGNS:
            chosen = turned(found, agreement_of(found, sign, qg, pooled))
            taus[sign].append(kendalltau(chosen.utility, utility).statistic)
            assert chosen.bias.sum() == pytest.approx(1) and chosen.bias.min() > -1e-9
    for sign in ("falling", "query_likelihood", "pooled"):
        assert np.mean(taus[sign]) >= bar, sign
    assert abs(np.mean(taus["as_solved"])) < 0.5  # a matter of chance


def test_the_opposite_solution_explains_the_scores_as_well():
    for _, _, found in simulated(0.5, 1, questions=5):
        other = turned(found, -1.0)
        rows = np.array(list(itertools.permutations(range(5)))[::7])
        mean = [u[rows] @ a for u, a in ((found.utility, found.bias), (other.utility, other.bias))]
        np.testing.assert_allclose(mean[0] - mean[0].mean(), mean[1] - mean[1].mean(), atol=1e-9)
        assert found.order("matched").tolist() == other.order("matched").tolist()
        assert descending(found.utility).tolist() == descending(other.utility).tolist()[::-1]


def test_prefixes_need_no_rule(tiny_reader):
    found = [moi_paper(tiny_reader, "which?", PASSAGES, prune=2, sign=sign) for sign in ("falling", "as_solved")]
    assert found[0].order == found[1].order and not found[0].details["turned"]
    assert "sign" not in found[0].details["flags"] and len(found[0].details["bias"]) == 2


def test_matched_order_and_cyclic_orderings(tiny_reader):
    both = [moi_paper(tiny_reader, "which?", PASSAGES, order="matched", sign=sign) for sign in ("falling", "as_solved")]
    assert both[0].order == both[1].order
    found = moi_paper(tiny_reader, "which?", PASSAGES, permutations="cyclic")
    assert found.details["orderings"] == 4 and "singular" in found.details["flags"]
    assert np.polyfit(range(4), found.details["bias"], 1)[0] < 0


def test_a_pooled_sign_needs_a_bias_of_this_reader(tiny_reader):
    with pytest.raises(InputError, match="sign 'pooled': needs a bias"):
        moi_paper(tiny_reader, "which?", PASSAGES, sign="pooled")
    with pytest.raises(InputError, match="sign: expected one of"):
        moi_paper(tiny_reader, "which?", PASSAGES, sign="rising")
    with pytest.raises(InputError, match="order: expected one of"):
        moi_paper(tiny_reader, "which?", PASSAGES, order="given")
