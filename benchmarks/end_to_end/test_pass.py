"""pytest-benchmark suite of whole passes: python -m pytest benchmarks/end_to_end --benchmark-only

FASTREADER_BENCH_SHARE (default 0.1) scales the workloads; 1 is their full size, which takes minutes a round.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
import work
import workloads

from fastreader import Reader

SHARE = float(os.environ.get("FASTREADER_BENCH_SHARE", "0.1"))


@pytest.fixture(scope="module", params=["fast", "high", "exact"])
def reader(request):
    return Reader.load("smollm2-135m", precision=request.param)


@pytest.mark.parametrize("name", workloads.NAMES)
def test_pass(benchmark, reader, name):
    sequences = workloads.make(name, reader.encoder, share=SHARE).sequences()
    trees = reader.plan(sequences)
    benchmark.extra_info |= {
        "given": sum(tree.stats.total_tokens for tree in trees),
        "computed": sum(map(len, trees)),
        "flops": sum(work.flops(trees, reader.local_model.model.config).values()),
    }
    scores = benchmark.pedantic(lambda: reader.score(sequences), rounds=3, warmup_rounds=1)
    assert len(scores.logprob) == len(sequences)
