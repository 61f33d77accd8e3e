"""impl='fla' of the recurrences, with a stand-in for fla-core on the CPU."""

from __future__ import annotations

import importlib.util
import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from recurrent_cases import HEADS, OPS, initial, operands, random_tree
from torch import Tensor

from fastreader.errors import UnsupportedImplementationError
from fastreader.ops import triton_support
from fastreader.ops.dispatch import choose
from fastreader.ops.recurrent import ScanPlan, fla, gated_delta_rule

CPU = torch.device("cpu")
FUNCTIONS = {
    "gated_delta_rule": ("fla.ops.gated_delta_rule", "chunk_gated_delta_rule"),
    "kimi_delta_rule": ("fla.ops.kda", "chunk_kda"),
    "linear_attention": ("fla.ops.simple_gla", "chunk_simple_gla"),
}


class StandIn:
    """A function of fla-core by its definition, one sequence after another.

    Args:
        op: its name in `OPS`.

    Attributes:
        calls: the number of sequences of each call.
    """

    def __init__(self, op: str) -> None:
        self.op = op
        self.calls: list[int] = []

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor | None = None,
        *,
        scale: float,
        initial_state: Tensor | None,
        output_final_state: bool,
        cu_seqlens: Tensor,
        cu_seqlens_cpu: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        (_, tokens, heads, size), bounds = v.shape, cu_seqlens.tolist()
        assert q.shape == k.shape and len(q) == len(v) == 1 and heads % k.shape[2] == 0
        assert g.shape == (1, tokens, heads, k.shape[3])[: 4 if self.op == "kimi_delta_rule" else 3]
        assert g.dtype == torch.float32 and bounds[0] == 0 and bounds[-1] == tokens
        assert cu_seqlens.dtype == torch.int64 and cu_seqlens_cpu.device == CPU and cu_seqlens_cpu.tolist() == bounds
        if self.op == "linear_attention":
            assert beta is None and k.shape[2] == heads
            options = {}
            q = q * scale
        else:
            assert beta is not None and beta.shape == (1, tokens, heads)
            options = {"scale": scale}
        given = [x[0] for x in (q, k, v, g, beta) if x is not None]
        if initial_state is not None:
            assert initial_state.shape == (len(bounds) - 1, heads, k.shape[3], size)
            assert initial_state.dtype == torch.float32
        out, states = [], []
        for i, (a, b) in enumerate(pairwise(bounds)):
            parent = np.arange(-1, b - a - 1)
            parent[0] = -1 if initial_state is None else -2 - i
            plan = ScanPlan(parent, np.array([b - a - 1]), CPU)
            made, state = OPS[self.op](
                *(x[a:b] for x in given), plan, initial=initial_state, impl="reference", **options
            )
            out.append(made)
            states.append(state)
        self.calls.append(len(bounds) - 1)
        return torch.cat(out)[None], torch.cat(states) if output_final_state else None


@pytest.fixture
def stood_in(monkeypatch: pytest.MonkeyPatch) -> dict[str, StandIn]:
    made = {op: StandIn(op) for op in FUNCTIONS}
    for op, (module, name) in FUNCTIONS.items():
        stand_in = ModuleType(module)
        setattr(stand_in, name, made[op])
        monkeypatch.setitem(sys.modules, module, stand_in)
    monkeypatch.setattr(fla, "why_not", lambda operands: None)
    return made


@pytest.mark.parametrize("branching", [0.0, 0.02, 0.2, 0.6])
@pytest.mark.parametrize("op", sorted(HEADS))
def test_random_trees(op: str, branching: float, stood_in: dict[str, StandIn]) -> None:
    rng = np.random.default_rng(0)
    for seed, size in enumerate([1, 2, 15, 16, 17, 63, 64, 65, 129, 200]):
        outside = seed % 3
        parent = random_tree(rng, size, branching, outside)
        keep = rng.integers(0, size, seed % 5)  # none of them, or some of them twice
        plan = ScanPlan(parent, keep, CPU)
        given = operands(op, size, seed, torch.float32)
        start = initial(op, outside, 1, torch.float32)
        options = {} if op == "linear_attention" else {"scale": 0.5, "norm_epsilon": (None, 1e-3)[seed % 2]}
        want, states = OPS[op](*given, plan, initial=start, impl="torch", **options)
        got, kept = OPS[op](*given, plan, initial=start, impl="fla", **options)
        torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(kept, states, atol=2e-5, rtol=2e-5)


def test_types(stood_in: dict[str, StandIn]) -> None:
    parent = random_tree(np.random.default_rng(1), 60, 0.2)
    plan = ScanPlan(parent, np.array([59, 3]), CPU)
    for op in sorted(HEADS):
        given = [x.bfloat16() for x in operands(op, 60, 0)]
        want, states = OPS[op](*given, plan, impl="torch")
        got, kept = OPS[op](*given, plan, impl="fla")
        assert got.dtype == want.dtype == torch.bfloat16 and kept.dtype == torch.float32
        torch.testing.assert_close(got.float(), want.float(), atol=3e-2, rtol=3e-2)  # each rounds to bfloat16
        torch.testing.assert_close(kept, states, atol=2e-5, rtol=2e-5)


def test_a_call_a_level_by_tables_made_once(stood_in: dict[str, StandIn]) -> None:
    # 0 1 2, of which 3 4 and 7 8 follow 2, 5 and 6 follow 4; 9 is a separate tree, after initial state 1.
    parent = np.array([-1, 0, 1, 2, 3, 4, 4, 2, 7, -3])
    plan = ScanPlan(parent, np.array([8, 1, 8]), CPU)
    first, second, third, fourth = fla.level_calls(plan)
    assert isinstance(first.tokens, Tensor) and first.tokens.tolist() == [0, 1, 9]
    assert first.bounds.tolist() == [0, 2, 3] == first.host_bounds.tolist()
    assert first.before is not None and first.before.tolist()[1] == 1
    assert first.zeros is not None and first.zeros.tolist() == [0]
    assert first.kept is not None and first.kept.tolist() == [[0], [1]] and first.needed
    assert second.tokens == slice(2, 3) and second.kept is None  # the state after 1 is kept, so its chain ends there
    assert isinstance(third.tokens, Tensor) and third.tokens.tolist() == [3, 4, 7, 8]
    assert third.before is not None and third.before.tolist() == [0, 0] and third.zeros is None
    assert third.kept is not None and third.kept.tolist() == [[1, 1], [0, 2]]
    assert fourth.tokens == slice(5, 7) and not fourth.needed
    given = operands("gated_delta_rule", 10, 0, torch.float32)
    start = initial("gated_delta_rule", 2, 1, torch.float32)
    for _ in range(2):
        OPS["gated_delta_rule"](*given, plan, initial=start, impl="fla")
    assert stood_in["gated_delta_rule"].calls == 2 * [2, 1, 2, 2]
    assert fla.level_calls(plan)[0] is first


def test_no_tokens(stood_in: dict[str, StandIn]) -> None:
    plan = ScanPlan(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), CPU)
    out, kept = OPS["linear_attention"](*operands("linear_attention", 0, 0, torch.float32), plan, impl="fla")
    assert out.shape == (0, 4, 6) and kept.shape == (0, 4, 8, 6) and not stood_in["linear_attention"].calls


def rows(size: int, value_size: int, dtype: torch.dtype = torch.bfloat16, heads: int = 2) -> dict[str, Any]:
    query, value = torch.ones(3, heads, size, dtype=dtype), torch.ones(3, heads, value_size, dtype=dtype)
    return {"query": query, "key": query, "value": value, "gate": -query[..., 0], "beta": query[..., 0]}


def refusal(given: dict[str, Any]) -> str:
    plan = ScanPlan(np.array([-1, 0, 1]), np.zeros(0, dtype=np.int64), CPU)
    with pytest.raises(
        UnsupportedImplementationError, match="gated_delta_rule: impl 'fla' cannot run here: "
    ) as raised:
        gated_delta_rule(**given, plan=plan, impl="fla")
    return str(raised.value)


def test_what_it_refuses_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "it needs a CUDA device, got cpu" in refusal(rows(64, 64))
    monkeypatch.setattr(triton_support, "on_gpu", lambda device: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "the package fla-core is not installed" in refusal(rows(64, 64))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert "products of float32 are TF32, got float32" in refusal(rows(64, 64, torch.float32))
    monkeypatch.setattr(triton_support, "why_not", lambda query: "the device is too old")
    assert "the device is too old" in refusal(rows(64, 64))


def test_operands_that_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla, "_why_not_here", lambda query: None)
    assert fla.why_not(rows(64, 128)) is None and fla.why_not(rows(256, 512)) is None
    for sizes in ((264, 64), (60, 64), (64, 60)):
        assert f"of keys up to 256, got {sizes[0]} and {sizes[1]}" in refusal(rows(*sizes))
    assert "at least one head" in refusal(rows(64, 64, heads=0))
    given = rows(64, 64)
    mixed = given | {"value": given["value"].half()}
    assert "of one type, got bfloat16, bfloat16, float16" in refusal(mixed)
    assert "got beta in float64" in refusal(given | {"beta": given["beta"].double()})


def test_auto_never_chooses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given = torch.ones(3)
    assert choose("op", "auto", given, fla=lambda: None) == "torch"
    monkeypatch.setattr(triton_support, "on_gpu", lambda device: True)
    assert choose("op", "auto", given, triton=lambda: None, fla=lambda: None) == "triton"
    assert choose("op", "auto", given, triton=lambda: "no", fla=lambda: None) == "torch"
    assert choose("op", "fla", given, fla=lambda: None) == "fla"
