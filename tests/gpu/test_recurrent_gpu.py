"""The recurrent Triton kernels on the device, against float64, at the shapes of real models."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from recurrent_cases import random_tree, relative_error
from torch import Tensor

from fastreader.ops.causal_conv import causal_conv
from fastreader.ops.recurrent import ScanPlan, gated_delta_rule, linear_attention, linear_recurrence, selective_scan
from fastreader.ops.recurrent.chains import nearest_ancestors

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")
BRANCHING = (0.0, 0.01, 0.3)
# Heads of keys and values and their sizes: Qwen3-Next, Kimi Linear, Mamba-2, MiniMax, and sizes that fill no block.
SHAPES = ((16, 32, 128, 128), (8, 8, 128, 128), (1, 64, 128, 64), (8, 8, 96, 96), (2, 4, 40, 72), (1, 2, 256, 256))


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def tree(branching: float, tokens: int) -> np.ndarray:
    return random_tree(np.random.default_rng(tokens), tokens, branching)


def check(op, given: list[Tensor], parent: np.ndarray) -> None:
    plan = ScanPlan(parent, np.array([len(parent) - 1, 0]), DEVICE)
    want = op(*(x.double() for x in given), plan, impl="torch")
    got = op(*given, plan, impl="triton")
    assert max(map(relative_error, got, want)) < 1e-5
    assert torch.equal(op(*given, plan)[0], got[0])
    half = [x.bfloat16() for x in given]
    want = op(*(x.double() for x in half), plan, impl="torch")
    out, kept = op(*half, plan)
    assert out.dtype == torch.bfloat16
    assert relative_error(out, want[0]) < 1e-2 and relative_error(kept, want[1]) < 1e-5


@pytest.mark.parametrize("branching", BRANCHING)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", ["linear", "head", "channel"])
def test_linear_attention_and_delta_rules(rule: str, shape: tuple[int, ...], branching: float) -> None:
    key_heads, heads, size, value_size = shape
    tokens = 700
    query, key = draw(tokens, key_heads, size), draw(tokens, key_heads, size)
    key = torch.nn.functional.normalize(key, dim=-1)
    value, beta = draw(tokens, heads, value_size), draw(tokens, heads).sigmoid()
    gate = -0.1 * (draw(tokens, heads, size) if rule == "channel" else draw(tokens, heads)).exp()
    if rule == "linear":
        check(linear_attention, [query, key, value, gate], tree(branching, tokens))
    else:
        check(gated_delta_rule, [query, key, value, gate, beta], tree(branching, tokens))


@pytest.mark.skipif(importlib.util.find_spec("fla") is None, reason="the extra fla is not installed")
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[4]], ids=str)
@pytest.mark.parametrize("rule", ["linear", "head", "channel"])
def test_fla_core(rule: str, shape: tuple[int, ...]) -> None:
    # fla-core rounds what its kernels hand on to bfloat16, also the states within a chain. On an H200 its outputs erred
    # by 8e-3 of the largest; the bound is twice that of our kernels, of which only the outputs are rounded.
    key_heads, heads, size, value_size = shape
    query, key = draw(700, key_heads, size), F.normalize(draw(700, key_heads, size), dim=-1)
    value, beta = draw(700, heads, value_size), draw(700, heads).sigmoid()
    gate = -0.1 * (draw(700, heads, size) if rule == "channel" else draw(700, heads)).exp()
    linear = rule == "linear"
    op = linear_attention if linear else gated_delta_rule
    options = {} if linear else {"scale": size**-0.5, "norm_epsilon": 1e-6}
    given = [x.bfloat16() for x in (query, key, value, gate, beta)[: 4 if linear else 5]]
    plan = ScanPlan(random_tree(np.random.default_rng(0), 700, 0.01, outside=1), np.array([699, 0, 350]), DEVICE)
    start = draw(1, heads, size, value_size)
    want = op(*(x.double() for x in given), plan, initial=start.double(), impl="torch", **options)
    out, kept = op(*given, plan, initial=start, impl="fla", **options)
    assert out.dtype == torch.bfloat16 and kept.dtype == torch.float32
    assert relative_error(out, want[0]) < 2e-2 and relative_error(kept, want[1]) < 2e-2


@pytest.mark.parametrize("branching", BRANCHING)
@pytest.mark.parametrize("channels", [100, 8192])
def test_scans_by_token(channels: int, branching: float) -> None:
    parent = tree(branching, 500)
    rows, step = draw(500, channels), 0.2 * draw(500, channels).exp()
    check(selective_scan, [rows, step, -draw(channels, 16).exp(), draw(500, 16), draw(500, 16)], parent)
    check(linear_recurrence, [rows, (2 + draw(500, channels)).sigmoid()], parent)


@pytest.mark.parametrize("branching", BRANCHING)
def test_causal_conv(branching: float) -> None:
    near = torch.from_numpy(nearest_ancestors(tree(branching, 500), 3)).to(DEVICE)
    rows, weight, bias = draw(500, 1000), draw(1000, 4), draw(1000)
    want = causal_conv(rows.double(), weight.double(), near, bias=bias.double(), impl="torch")
    assert relative_error(causal_conv(rows, weight, near, bias=bias), want) < 1e-5
