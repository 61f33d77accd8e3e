"""Orders without a reader, and scores placed by a bias."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fastreader import Passage
from fastreader.errors import InputError
from fastreader.moi import PositionBias
from fastreader.moi.baselines import METHODS, Ordering, oracle, score_matched


def passages(n, **marks):
    return [Passage(f"text {i}", score=float(n - i), **{k: i == v for k, v in marks.items()}) for i in range(n)]


def a_bias(weights, **changes):
    weights = np.asarray(weights, dtype=float)
    weights = weights / np.linalg.norm(weights)
    n = len(weights)
    values = {
        "bias": weights, "beta": 0.3, "tau": 1.0, "sigma": 0.5, "num_passages": n, "sign": "query_likelihood",
        "intervals": np.stack([weights, weights], axis=1), "covariance": np.zeros((n, n)), "r2": 0.5,
        "num_questions": 9, "num_orderings": 90,
    }  # fmt: skip
    return PositionBias(**{**values, **changes})


def run(name, n, **settings):
    return METHODS[name](None, "q", passages(n), **settings)


def test_retriever_and_reversed():
    assert run("retriever", 4).order == [0, 1, 2, 3]
    assert run("reversed", 4).order == [3, 2, 1, 0]
    assert run("retriever", 1).order == [0]
    assert run("retriever", 4).stats.computed_tokens == 0


@pytest.mark.parametrize(("n", "order"), [(1, [0]), (2, [0, 1]), (5, [0, 2, 4, 3, 1]), (6, [0, 2, 4, 5, 3, 1])])
def test_best_at_the_ends(n, order):
    """Ranks from the outside in: 1 3 5 4 2."""
    assert run("best-at-the-ends", n).order == order


@pytest.mark.parametrize("n", range(1, 12))
def test_long_context_reorder_is_what_stacks_ship(n):
    """From the worst passage on, each before and behind the passages already placed, the worst of all before."""
    placed = []
    for turn, rank in enumerate(reversed(range(n))):
        placed.insert(len(placed) if turn % 2 else 0, rank)
    assert run("long-context-reorder", n).order == placed


def test_random_is_seeded_and_uniform():
    orders = [tuple(run("random", 3, seed=s).order) for s in range(600)]
    assert orders == [tuple(run("random", 3, seed=s).order) for s in range(600)]
    counts = [orders.count(p) for p in itertools.permutations(range(3))]
    assert min(counts) > 60


@pytest.mark.parametrize("weights", [[0.8, 0.1, -0.9], [-1, 2, -1], [1, 0, -1]])
def test_score_matched_is_the_best_of_all_orders(weights):
    scores = np.array([0.3, 2.0, -1.0])
    best = max(itertools.permutations(range(3)), key=lambda o: float(np.dot(a_bias(weights).bias, scores[list(o)])))
    assert score_matched(scores, a_bias(weights)) == list(best)
    assert score_matched(scores**3 + 50, a_bias(weights)) == list(best)  # only their order counts


def test_bm25_matched():
    """Scores fall with the rank: the first passage goes to the place of the largest weight."""
    found = run("bm25-matched", 4, bias=a_bias([-1, -2, 0.5, 2.5]))
    assert found.order == [2, 3, 1, 0]
    assert found.name == "bm25-matched"
    tied = [Passage("a", score=1.0), Passage("b", score=1.0), Passage("c", score=1.0)]
    assert METHODS["bm25-matched"](None, "q", tied, bias=a_bias([-2, -1, 3])).order == [0, 1, 2]


def test_bm25_matched_needs_scores_and_a_bias_that_fits():
    with pytest.raises(InputError, match="needs bias"):
        run("bm25-matched", 3)
    with pytest.raises(InputError, match=r"passages\[1\].score: expected the retriever's score"):
        METHODS["bm25-matched"](None, "q", [Passage("a", score=1.0), Passage("b")], bias=a_bias([-1, 1]))
    with pytest.raises(InputError, match="N = 4 passages, got 3"):
        run("bm25-matched", 4, bias=a_bias([-1, 0, 1]))
    with pytest.raises(InputError, match="undetermined"):
        run("bm25-matched", 3, bias=a_bias([-1, 0, 1], sign="undetermined"))
    with pytest.raises(InputError, match="finite numbers"):
        score_matched([1.0, float("nan"), 2.0], a_bias([-1, 0, 1]))


def test_a_bias_of_another_reader_places_nothing(tiny_reader):
    bias = replace(a_bias([-1, 0, 1]), reader={"name": "another"})
    for name in ("bm25-matched", "qg-matched", "oracle"):
        with pytest.raises(InputError, match=f"reader: bias 'another', reader '{tiny_reader.name}'"):
            METHODS[name](tiny_reader, "q", passages(3, is_gold=1), bias=bias)
    assert METHODS["oracle"](None, "q", passages(3, is_gold=1), bias=bias).order == [0, 2, 1]
    with pytest.raises(InputError, match=r"expected a PositionBias .*got {}"):
        METHODS["bm25-matched"](None, "q", passages(3), bias={})


def test_oracle():
    bias = a_bias([-1, -2, 0.5, 2.5])
    assert oracle(None, "q", passages(4, is_gold=1), bias=bias).order == [0, 2, 3, 1]
    assert oracle(None, "q", passages(4, has_answer=2), place=0).order == [2, 0, 1, 3]
    both = [Passage("a", has_answer=True), Passage("b", is_gold=True)]
    assert oracle(None, "q", both, place=0).order == [1, 0]
    for settings, message in (
        ({"place": 0, "bias": bias}, "one of the two"),
        ({}, "one of the two"),
        ({"place": 4}, "place: expected an integer from 0 to 3, got 4"),
    ):
        with pytest.raises(InputError, match=message):
            oracle(None, "q", passages(4, is_gold=1), **settings)
    with pytest.raises(InputError, match="no passage is marked"):
        oracle(None, "q", passages(4), bias=bias)


@pytest.mark.parametrize("bad", [[], "text", ["text"], None])
def test_no_passages(bad):
    with pytest.raises(InputError, match="passages"):
        METHODS["retriever"](None, "q", bad)


def test_ordering():
    with pytest.raises(InputError, match="every passage once"):
        Ordering([0, 0, 1], "x")
    row = json.loads(json.dumps(run("random", 3, seed=1).to_dict()))
    assert sorted(row["order"]) == [0, 1, 2]
    assert row["details"] == {"seed": 1}


def test_a_method_takes_what_it_knows_and_no_more():
    assert "bias" not in METHODS["qg"].settings
    assert METHODS["qg-matched"].settings == METHODS["qg"].settings | {"bias"}
    assert run("retriever", 2, bias=a_bias([-1, 1]), seed=3, template=None).order == [0, 1]
    with pytest.raises(InputError, match="qg: needs reader"):
        run("qg", 2)


def test_import_needs_no_torch():
    code = "import sys, fastreader.moi.baselines; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
