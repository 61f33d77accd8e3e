from dataclasses import replace

import numpy as np
import pytest
from lib.simulate import bias_shape, simulate
from scipy.stats import norm

from fastreader.errors import InputError
from fastreader.moi import Observations, PositionBias, debias
from fastreader.moi.quantities.utilities import matched
from fastreader.moi.solve.p_best import best, tempered
from fastreader.permutations import cyclic, latin, pruned, random


def known(bias, n=None, *, beta=1.0, tau=1.0, sigma=0.5, covariance=None, **more):
    bias = np.asarray(bias, dtype=float)
    places = len(bias)
    return PositionBias(
        bias=bias / np.linalg.norm(bias),
        beta=beta,
        tau=tau,
        sigma=sigma,
        num_passages=n or places,
        sign=more.pop("sign", "query_likelihood"),
        intervals=np.zeros((places, 2)),
        covariance=np.zeros((places, places)) if covariance is None else covariance,
        r2=0.5,
        num_questions=30,
        num_orderings=600,
        **more,
    )


@pytest.mark.parametrize("n", [4, 7])
@pytest.mark.parametrize("length", [2, None])
def test_posterior_is_that_of_conditioning_the_joint_gaussian(n, length):
    rng = np.random.default_rng(n)
    length = length or n
    bias = known(rng.normal(size=length) + (length < n), n, beta=0.7, tau=1.3, sigma=0.4)
    o = simulate(bias.bias, 1, lambda s: pruned(random(n, 9, s), length), passages=n).observations[0]
    x = np.zeros((len(o), n))
    for i, row in enumerate(o.permutations):
        x[i, row] = bias.bias
    # Utilities, a constant with a vague prior, and scores are jointly Gaussian: condition on the scores.
    prior = 1.3**2 * np.eye(n)
    total = x @ prior @ x.T + 0.4**2 * np.eye(len(o)) + 1e7
    gain = prior @ x.T @ np.linalg.inv(total)
    z = o.qg - o.qg.mean()
    mean = 0.7 * z + gain @ (o.values - o.values.mean() - 0.7 * x @ z)
    cov = prior - gain @ x @ prior
    centre = np.eye(n) - 1 / n
    found = debias(o, bias)
    assert found.utility == pytest.approx(centre @ mean, abs=1e-5)
    assert found.covariance == pytest.approx(centre @ cov @ centre, abs=1e-5)
    assert found.std == pytest.approx(np.sqrt(np.diag(centre @ cov @ centre)), abs=1e-5)
    assert found.intervals[:, 1] == pytest.approx(found.utility + norm.ppf(0.975) * found.std)
    assert found.rank == n - 1
    assert found.identified


@pytest.mark.parametrize("n", [4, 5, 6, 10])
@pytest.mark.parametrize("design", [cyclic, lambda n: latin(n, 1, 3)])
@pytest.mark.parametrize("shape", ["u-shaped", "uneven"])
@pytest.mark.parametrize("sigma", [0.0, 1e-7, 0.5])
def test_fourier_solve_equals_the_dense_one(n, design, shape, sigma):
    weights = np.exp(np.linspace(0, 2, n)) - 3 if shape == "uneven" else bias_shape(shape, n)
    bias = known(weights, sigma=sigma, covariance=1e-4 * np.eye(n))
    o = simulate(bias.bias, 1, lambda s: design(n), sigma=sigma, seed=n).observations[0]
    one, other = debias(o, bias, solver="fft"), debias(o, bias, solver="dense")
    assert np.abs(one.utility).max() < 20
    assert one.utility == pytest.approx(other.utility, abs=1e-10)
    assert one.covariance == pytest.approx(other.covariance, abs=1e-10)
    assert (one.rank, one.condition) == (other.rank, pytest.approx(other.condition))
    with pytest.raises(InputError, match="cyclic"):
        debias(replace(o, permutations=o.permutations[[1, 0, *range(2, n)]]), bias, solver="fft")


@pytest.mark.parametrize("shape", ["decreasing", "u-shaped", "last-dominant"])
@pytest.mark.parametrize("n", [3, 5, 10])
def test_without_noise_the_utilities_are_exact(shape, n):
    data = simulate(bias_shape(shape, n), 5, lambda s: random(n, None, s), sigma=0.0)
    bias = known(data.bias, sigma=0.0)
    for o, truth in zip(data.observations, data.utilities, strict=True):
        found = debias(o, bias)
        assert found.utility == pytest.approx(truth, abs=1e-8)
        assert found.p_best.argmax() == truth.argmax()
        assert (found.order("descending") == np.argsort(-truth)).all()


def test_uncertainty_of_the_bias_is_added():
    n = 6
    truth = bias_shape("decreasing", n)
    tangent = np.eye(n) - 1 / n - np.outer(truth, truth)
    bias = known(truth, covariance=0.02 * tangent)
    o = simulate(truth, 1, lambda s: random(n, 18, s)).observations[0]
    step, base = 1e-5, debias(o, known(truth)).utility
    slopes = []
    for j in range(n):  # the derivative, numerically
        moved = known(truth)
        object.__setattr__(moved, "bias", moved.bias + step * np.eye(n)[j])
        slopes.append((debias(o, moved).utility - base) / step)
    slope = np.array(slopes).T
    added = debias(o, bias).covariance - debias(o, known(truth)).covariance
    assert added == pytest.approx(slope @ bias.covariance @ slope.T, abs=1e-4)


def test_intervals_cover_at_their_rate():
    n = 5
    bias = known(bias_shape("last-dominant", n))
    data = simulate(bias.bias, 600, lambda s: latin(n, 1, s), seed=2)
    inside = [
        (u.intervals[:, 0] <= t) & (t <= u.intervals[:, 1])
        for u, t in zip((debias(o, bias) for o in data.observations), data.utilities, strict=True)
    ]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


def test_symmetric_bias_on_an_even_cycle_is_flagged():
    for n in (4, 10, 20):
        bias = known(bias_shape("u-shaped", n))
        o = simulate(bias.bias, 1, lambda s, n=n: cyclic(n)).observations[0]
        for solver in ("fft", "dense"):
            found = debias(o, bias, solver=solver)
            assert "singular" in found.flags
            assert not found.identified
            assert found.condition == np.inf
    assert debias(o, bias).rank == n - 2


def test_a_direction_seen_only_by_errors_of_the_bias_is_flagged():
    n = 6
    rng = np.random.default_rng(0)
    wrong = bias_shape("u-shaped", n) + 0.01 * rng.normal(size=n)
    o = simulate(bias_shape("u-shaped", n), 1, lambda s: cyclic(n)).observations[0]
    assert debias(o, known(wrong)).rank == n - 1
    assert debias(o, known(wrong, covariance=1e-4 * np.eye(n))).rank == n - 2


def test_flags_of_the_bias_and_of_the_design():
    n = 5
    o = simulate(bias_shape("decreasing", n), 1, lambda s: random(n, 15, 1)).observations[0]
    flat = debias(o, known(bias_shape("decreasing", n), flat=True, reason="nothing held out"))
    assert "flat" in flat.flags
    assert "nothing held out" in flat.reason
    assert not flat.identified
    either = debias(o, known(bias_shape("decreasing", n), sign="undetermined"))
    assert "sign" in either.flags
    assert sorted(either.order("matched")) == list(range(n))
    with pytest.raises(InputError, match="undetermined"):
        either.order("descending")
    few = replace(o, values=o.values[:4], permutations=o.permutations[:4])
    found = debias(few, known(bias_shape("decreasing", n)))
    assert "uncovered" in found.flags
    assert "never read at place" in found.reason
    assert found.rank <= 3
    assert "singular" in found.flags


def test_scores_without_the_query_likelihoods_of_the_prior_are_flagged():
    data = simulate(bias_shape("decreasing", 5), 1, lambda s: latin(5, 2, s))
    o = replace(data.observations[0], qg=np.zeros(5))
    without = replace(o, qg=None)
    found = debias(without, known(data.bias, beta=0.5))
    assert found.flags == ("prior",) and "query_likelihood=True" in found.reason
    assert found.identified
    assert debias(without, known(data.bias, beta=0.0)).flags == debias(o, known(data.bias, beta=0.5)).flags == ()


@pytest.mark.parametrize("value", [-12.0, -12.3, -40.1, -57.7])
@pytest.mark.parametrize("n", [5, 10])
def test_constant_scores_are_flagged_and_keep_the_retrievers_order(value, n):
    for design in (cyclic(n), random(n, 3 * n, 1)):
        o = Observations(np.full(len(design), value), design.permutations, n, qg=np.full(n, -31.7))
        for method, bias in (("calibrated", known(bias_shape("last-dominant", n))), ("joint", None)):
            found = debias(o, bias, method)
            assert "constant" in found.flags
            assert not found.identified
            assert found.order("matched").tolist() == list(range(n))
            assert method == "joint" or found.order("descending").tolist() == list(range(n))


@pytest.mark.parametrize("design", [cyclic, lambda n: random(n, 3 * n, 1), lambda n: latin(n, 2, 3)])
@pytest.mark.parametrize("shape", ["decreasing", "last-dominant"])
def test_passages_of_one_utility_keep_the_retrievers_order(design, shape):
    n = 10
    bias, utility = known(bias_shape(shape, n), beta=0.0, sigma=1e-6), np.array([0.0, 1, 0, 1, 2, 0, 1, 2, 0, 0])
    o = Observations(-57.7 + utility[design(n).permutations] @ bias.bias, design(n).permutations, n)
    found = debias(o, bias)
    assert found.utility == pytest.approx(utility - utility.mean(), abs=1e-6)
    assert found.order("descending").tolist() == [4, 7, 1, 3, 6, 0, 2, 5, 8, 9]
    assert found.order("matched").tolist() == matched(utility, bias.bias).tolist()


def test_one_passage():
    found = debias(Observations(np.array([-3.0, -3.0]), np.array([[0], [0]]), 1), known([1.0]))
    assert found.utility.tolist() == [0.0]
    assert found.order().tolist() == [0]
    assert found.identified
    once = debias(Observations(np.array([-3.0]), np.array([[0]]), 1), known([1.0]))  # all orderings there are
    assert once.utility.tolist() == [0.0]


def test_best_of_two_is_a_normal_probability():
    covariance = np.array([[0.5, 0.1], [0.1, 0.3]])
    expected = norm.cdf(0.4 / np.sqrt(0.5 + 0.3 - 0.2))
    assert best(np.array([0.4, 0.0]), covariance)[0] == pytest.approx(expected, abs=0.02)
    assert best(np.array([1.0, 1.0, 0.0]), np.zeros((3, 3))).tolist() == [0.5, 0.5, 0.0]
    assert tempered(np.array([0.8, 0.2]), 2.0)[0] == pytest.approx(0.8**0.5 / (0.8**0.5 + 0.2**0.5))


def test_a_bias_of_something_else_raises_and_both_are_named():
    o = replace(
        simulate(bias_shape("decreasing", 5), 1, lambda s: random(5, 15, s)).observations[0],
        reader={"name": "one"},
        template="t1",
    )
    for wrong, message in [
        (known(bias_shape("decreasing", 6)), "passages N: bias 6, scores 5"),
        (known([0.5, 0.5, 0.7], 5), "places L: bias 3, scores 5"),
        (known(bias_shape("decreasing", 5), reader={"name": "two"}), "reader: bias 'two', scores 'one'"),
        (
            known(bias_shape("decreasing", 5), reader={"name": "one", "revision": "0a1b"}),
            "the reader's revision: bias '0a1b', scores ''",
        ),
        ("bias.json", "bias: expected a PositionBias .*got 'bias.json'"),
        (known(bias_shape("decreasing", 5), template="t2"), "template: bias 't2', scores 't1'"),
    ]:
        with pytest.raises(InputError, match=message):
            debias(o, wrong)
    with pytest.raises(InputError, match="'joint'"):
        debias(o, known(bias_shape("decreasing", 5), kind="joint"))
    with pytest.raises(InputError, match="needs a position bias"):
        debias(o)
    with pytest.raises(InputError, match="expected None"):
        debias(o, known(bias_shape("decreasing", 5)), "joint")


def test_bad_observations():
    rows = cyclic(3).permutations
    with pytest.raises(InputError, match=r"values\[1\]: expected a finite number, got nan"):
        Observations(np.array([0.0, np.nan, 1.0]), rows, 3)
    with pytest.raises(InputError, match="qg"):
        Observations(np.zeros(3), rows, 3, qg=np.array([0.0, np.inf, 1.0]))
    with pytest.raises(InputError, match="distinct passages"):
        Observations(np.zeros(1), np.array([[0, 0, 1]]), 3)
    with pytest.raises(InputError, match="shape"):
        Observations(np.zeros(2), rows, 3)
    with pytest.raises(InputError, match="two orderings"):
        debias(Observations(np.zeros(1), np.array([[0, 1, 2]]), 3), known(bias_shape("decreasing", 3)))
