"""Benchmark the ops with pytest-benchmark: python -m pytest benchmarks/ops --benchmark-only"""

from __future__ import annotations

import pytest
import torch
from op_cases import LAYERS, attention_case, head_case, linear_case

from fastreader.ops import extension, linear, linear_logprob, tree_attention
from fastreader.ops.linear import prepare

IMPLEMENTATIONS = ["torch"] if extension.why_missing() else ["torch", "cpu"]


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("workload", ["w1", "w2"])
def test_tree_attention(benchmark, workload, dtype, impl):
    case = attention_case(workload, dtype)
    benchmark.extra_info["flops"] = case.flops
    benchmark.pedantic(
        lambda: tree_attention(
            case.query, case.key, case.value, case.subtree_end, scale=0.125, plan=case.plan, impl=impl
        ),
        rounds=7,
        warmup_rounds=1,
    )


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_linear_logprob(benchmark, dtype, impl):
    hidden, weight, target, flops = head_case(dtype, 1024)
    benchmark.extra_info["flops"] = flops
    benchmark.pedantic(lambda: linear_logprob(hidden, weight, target, impl=impl), rounds=3, warmup_rounds=1)


@pytest.mark.skipif(bool(extension.why_missing()), reason=f"no C++ extension: {extension.why_missing()}")
@pytest.mark.parametrize("precision", ["bf16", "bf16x3"])
@pytest.mark.parametrize("shape", LAYERS, ids=lambda shape: f"{shape[0]}-{shape[1]}")
def test_linear(benchmark, shape, precision):
    inputs, weight, flops = linear_case(512, shape)
    packed = prepare(weight, precision)
    benchmark.extra_info["flops"] = flops
    benchmark.pedantic(lambda: linear(inputs, packed, precision=precision), rounds=20, warmup_rounds=2)
