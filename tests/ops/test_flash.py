"""impl='flash' of tree_attention, with a stand-in for FlashAttention on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from forests import attention_inputs, forest, random_forest
from torch import Tensor

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops.serving import serving
from fastreader.ops.tree_attention import AttentionPlan, flash, tree_attention
from fastreader.ops.tree_attention.cascade import cascade

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "gpu"))

from gpu_workloads import WORKLOADS


def standin(q: Tensor, k: Tensor, v: Tensor, tables: flash.Tables, scale: float) -> tuple[Tensor, Tensor]:
    """Attention of ranges as flash_attn_varlen_func defines it: causal aligned bottom right, lse [Hq, N]."""
    (at_q, at_k), (longest_q, longest_k) = tables.bounds, tables.longest
    groups = q.shape[1] // k.shape[1]
    out, lse = torch.zeros_like(q), torch.full((q.shape[1], len(q)), float("-inf"))
    assert int(at_q.diff().max()) == longest_q and int(at_k.diff().max()) == longest_k
    for a, b, c, d in zip(*(at.tolist()[s] for at in (at_q, at_k) for s in (slice(-1), slice(1, None))), strict=True):
        keys, values = (tensor[c:d].repeat_interleave(groups, 1) for tensor in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[a:b], keys) * scale
        if tables.causal:
            late = torch.arange(d - c)[None, :] > torch.arange(b - a)[:, None] + (d - c) - (b - a)
            scores = scores.masked_fill(late, float("-inf"))
        lse[:, a:b] = scores.logsumexp(-1)
        out[a:b] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    return out, lse


@pytest.fixture
def stood_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "engine", lambda: ("stand-in", standin))
    monkeypatch.setattr(flash, "_why_not_here", lambda query: None)
    monkeypatch.setattr(flash, "MAX_LEVELS", 1000)


def test_random_trees(stood_in: None) -> None:
    rng, worst = np.random.default_rng(0), 0.0
    for seed in range(500):
        subtree_end, positions = random_forest(seed, int(rng.integers(1, 60)), branching=float(rng.choice([0.1, 0.4])))
        some = np.sort(rng.choice(len(subtree_end), int(rng.integers(1, len(subtree_end) + 1))))
        nodes = (None, some, rng.integers(0, len(subtree_end), 9))[seed % 3]
        inputs = attention_inputs(
            subtree_end, positions, dtype=torch.float32, heads=((6, 2), (2, 2))[seed % 2], size=16, query_node=nodes
        )
        out, lse = tree_attention(
            *(inputs.query, inputs.key, inputs.value, inputs.subtree_end),
            query_node=None if nodes is None else inputs.query_node,
            scale=inputs.scale,
            return_lse=True,
            impl="flash",
        )
        golden, golden_lse = inputs.golden()
        worst = max(worst, float((out - golden).abs().max()), float((lse - golden_lse).abs().max()))
    assert worst <= 2e-6


def test_calls_by_hand() -> None:
    # A root of 3 keys, a child of 2 with two leaves of 1, and a second child of 2: 0 1 2 | 3 4 | 5, 6 | 7 8.
    subtree_end = np.array([9, 9, 9, 7, 7, 6, 7, 9, 9], dtype=np.int32)
    own, first = cascade(subtree_end, np.arange(9))
    assert own.causal
    assert own.entries[:, :2].tolist() == [[0, 6], [6, 7], [7, 9]]  # the first chain continues to the first leaf
    assert first.entries.tolist() == [[6, 7, 0, 5], [7, 9, 0, 3]]
    assert not first.causal


@pytest.mark.parametrize(("name", "calls"), [("W1", 3), ("W2", 2), ("W4", 3)])
def test_levels_of_the_workloads(name: str, calls: int) -> None:
    tree = WORKLOADS[name]()
    assert len(AttentionPlan(tree.subtree_end).cascade) == calls


def test_what_it_refuses() -> None:
    inputs = attention_inputs(*random_forest(3, 30), dtype=torch.bfloat16, size=16)
    given = (inputs.query, inputs.key, inputs.value, inputs.subtree_end)
    positions = {"query_positions": inputs.query_positions, "key_positions": inputs.key_positions}
    for name, option in {
        "window": 5,
        "chunk": 5,
        "softcap": 2.0,
        "sinks": torch.ones(6),
        "slopes": torch.ones(6),
    }.items():
        with pytest.raises(UnsupportedImplementationError, match=f"takes? no {name}"):
            tree_attention(*given, scale=1.0, impl="flash", **{name: option}, **positions)
    with pytest.raises(UnsupportedImplementationError, match="needs a CUDA device, got cpu"):
        tree_attention(*given, scale=1.0, impl="flash")


def test_too_many_levels(stood_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "MAX_LEVELS", 4)
    # Each chain begins at the last token but one of the chain before.
    deep = attention_inputs(*forest([0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]), dtype=torch.float32, size=16)
    with pytest.raises(UnsupportedImplementationError, match="it takes 4, got"):
        tree_attention(deep.query, deep.key, deep.value, deep.subtree_end, scale=1.0, impl="flash")


def test_subtrees_that_are_none() -> None:
    with pytest.raises(InputError, match="subtree_end"):
        cascade(np.array([0, 2], dtype=np.int32), np.arange(2))


def test_status_names_the_engine() -> None:
    (found,) = [each for each in serving()["tree_attention"] if each.implementation == "flash"]
    assert "PyTorch's FlashAttention-2" in found.why


@pytest.mark.parametrize(
    ("installed", "name"),
    [
        ((), "PyTorch's FlashAttention-2"),
        (("flash_attn",), "PyTorch's FlashAttention-2"),  # flash-attn-4 has such a package
        (("flash_attn", "flash_attn.flash_attn_interface"), "flash-attn"),
        (("fa3_fwd_interface",), "FlashAttention-3, bfloat16 only"),
    ],
)
def test_the_engine_is_what_is_installed(
    installed: tuple[str, ...], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(module: str) -> object | None:
        if "." in module and module.partition(".")[0] not in installed:
            raise ModuleNotFoundError(module)
        return object() if module in installed else None

    monkeypatch.setattr(flash.importlib.util, "find_spec", find)
    assert flash.engine.__wrapped__()[0] == name


def test_a_wheel_without_float16_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash.triton_support, "on_gpu", lambda device: True)
    monkeypatch.setattr(flash, "engine", lambda: (flash._ONLY_BFLOAT16, standin))
    query = torch.zeros(2, 1, 64)
    assert flash.why_not(query.bfloat16(), query.bfloat16()) is None
    assert "bfloat16 only" in flash.why_not(query.half(), query.half())
    narrow = torch.zeros(2, 1, 12).bfloat16()
    assert "multiple of 8" in flash.why_not(narrow, narrow)
