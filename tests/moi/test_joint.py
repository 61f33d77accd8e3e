import json
from dataclasses import replace

import numpy as np
import pytest
from lib.simulate import bias_shape, simulate
from scipy.optimize import approx_fprime

from fastreader.errors import InputError
from fastreader.moi import Observations, debias
from fastreader.moi.solve.joint import jacobian, objective, predicted, solve
from fastreader.moi.solve.likelihood import places_of
from fastreader.permutations import cyclic, pruned, random


def test_gradient_and_jacobian():
    rng = np.random.default_rng(0)
    rows = pruned(random(6, 14), 4).permutations
    place, s = places_of(rows, 6), rng.normal(size=len(rows))
    unknown = rng.normal(size=10)
    value, gradient = objective(unknown, rows, place, s)
    by_hand = np.mean(
        [(sum(unknown[j] * unknown[4 + p] for j, p in enumerate(row)) - t) ** 2 for row, t in zip(rows, s, strict=True)]
    )
    assert value == pytest.approx(by_hand / 2)
    assert gradient == pytest.approx(approx_fprime(unknown, lambda x: objective(x, rows, place, s)[0]), abs=1e-5)

    def scores(free):
        return predicted(np.concatenate([[1 - free[:3].sum()], free[:3]]), free[3:], rows)

    free = rng.normal(size=9)
    a = np.concatenate([[1 - free[:3].sum()], free[:3]])
    assert jacobian(a, free[3:], rows, place) == pytest.approx(approx_fprime(free, scores), abs=1e-5)


@pytest.mark.parametrize("n", [3, 5, 10])
def test_random_prefixes_are_identified_and_exact(n):
    rng = np.random.default_rng(n)
    a = rng.dirichlet(2 * np.ones(max(2, n // 2)))
    data = simulate(a, 4, lambda s: pruned(random(n, None, s), len(a)), passages=n, sigma=0.0)
    for o, truth in zip(data.observations, data.utilities, strict=True):
        found = debias(o, method="joint")
        assert found.utility == pytest.approx(truth, abs=1e-4)
        assert found.bias == pytest.approx(a, abs=1e-4)
        assert found.identified, found.reason
        assert found.rank == len(a) - 1 + n
        # Scores are taken as exact, so no uncertainty is reported.
        assert "noise" in found.flags and "no intervals" in found.reason
        assert found.p_best is found.intervals is found.covariance is found.std is None
        assert json.loads(json.dumps(found.to_dict()))["p_best"] is None


def test_orderings_that_miss_a_place_are_flagged():
    o = simulate(np.array([0.5, 0.3, 0.2]), 1, lambda s: pruned(random(6, 60, s), 3), passages=6).observations[0]
    few = replace(o, values=o.values[:8], permutations=o.permutations[:8])
    seen = [{(p, j) for row in each.permutations for j, p in enumerate(row)} for each in (o, few)]
    assert [len(pairs) == 18 for pairs in seen] == [True, False]
    assert ["uncovered" in debias(each, method="joint").flags for each in (o, few)] == [False, True]


def test_passages_of_one_utility_keep_the_retrievers_order():
    utility = np.array([0.0, 1, 0, 1, 2])
    rows = pruned(random(5, 20, 1), 2).permutations
    found = debias(Observations(utility[rows] @ [0.7, 0.3], rows, 5), method="joint")
    assert found.identified
    assert found.order("descending").tolist() == [4, 1, 3, 0, 2]


@pytest.mark.parametrize("n", [3, 5, 10])
def test_whole_orderings_fit_but_are_flagged_since_the_reverse_fits_too(n):
    a = 1 / n + 0.5 / n * bias_shape("decreasing", n)
    data = simulate(a, 4, lambda s: random(n, None, s), sigma=0.0)
    for o, truth in zip(data.observations, data.utilities, strict=True):
        found = debias(o, method="joint")
        assert found.residual < 1e-4
        assert not found.identified
        assert {"ambiguous", "sign"} <= set(found.flags)
        # What is identified is the product of bias and utilities, each centred.
        product = np.outer(found.bias - 1 / n, found.utility)
        assert product == pytest.approx(np.outer(a - 1 / n, truth), abs=1e-3)
        # So matched order is right although the utilities may be reversed.
        assert (found.order("matched") == np.argsort(-truth)).all()


def test_cyclic_orderings_are_flagged_every_time():
    for n in (3, 4, 5, 8):
        for seed in range(5):
            a = 1 / n + 0.5 / n * bias_shape("last-dominant", n)
            o = simulate(a, 1, lambda s, n=n: cyclic(n), seed=seed).observations[0]
            found = debias(o, method="joint", starts=2)
            assert "singular" in found.flags
            assert not found.identified
            assert "unknowns" in found.reason


def test_starts_are_checked():
    o = simulate(bias_shape("decreasing", 3), 1, lambda s: cyclic(3)).observations[0]
    with pytest.raises(InputError, match="starts"):
        solve(o, starts=0)
