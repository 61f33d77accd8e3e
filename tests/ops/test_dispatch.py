"""The names of implementations are the same for every op. Each op runs a named one or raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops import IMPLEMENTATIONS, extension, linear, linear_logprob, merge_state, tree_attention
from fastreader.ops.decode_attention import Ranges, decode_attention
from fastreader.ops.dispatch import choose
from fastreader.ops.pointwise import gate, rms_norm, rotary

HEADS = torch.ones(3, 2, 8)
ROWS = torch.ones(3, 8)
ENDS = torch.full((3,), 3, dtype=torch.int32)
RANGES = Ranges(np.array([0, 1, 2, 3], np.int32), *(np.full(3, n, np.int32) for n in (0, 0, 3)))
# Each op, and the implementations that it has.
OPS: dict[str, tuple[Callable[[str], object], set[str]]] = {
    "tree_attention": (
        lambda impl: tree_attention(HEADS, HEADS, HEADS, ENDS, scale=1.0, impl=impl),
        {"reference", "torch", "cpu", "triton"},
    ),
    "decode_attention": (
        lambda impl: decode_attention(HEADS, [HEADS], [HEADS], RANGES, scale=1.0, impl=impl),
        {"reference", "cpu"},
    ),
    "merge_state": (
        lambda impl: merge_state(HEADS, HEADS[..., 0], HEADS, HEADS[..., 0], impl=impl),
        {"reference", "torch", "triton"},
    ),
    "linear": (lambda impl: linear(ROWS, ROWS, impl=impl), {"reference", "torch", "cpu"}),
    "linear_logprob": (
        lambda impl: linear_logprob(ROWS, ROWS, torch.zeros(3, dtype=torch.int64), impl=impl),
        {"reference", "torch", "cpu", "triton"},
    ),
    "rms_norm": (lambda impl: rms_norm(ROWS, ROWS[0], 1e-6, impl=impl), {"reference", "torch", "cpu", "triton"}),
    "rotary": (lambda impl: rotary(HEADS, ROWS, ROWS, impl=impl), {"reference", "torch", "cpu", "triton"}),
    "gate": (lambda impl: gate(ROWS, ROWS, "silu", impl=impl), {"reference", "torch", "cpu", "triton"}),
}


@pytest.mark.parametrize("op", OPS)
def test_a_named_implementation_runs_or_raises(op: str) -> None:
    call, has = OPS[op]
    call("auto")
    here = {"reference", "torch"} | (set() if extension.why_missing() else {"cpu"})
    for impl in IMPLEMENTATIONS[1:]:
        if impl in has & here:
            call(impl)
        else:
            with pytest.raises(UnsupportedImplementationError, match=f"{op}: impl '{impl}' cannot run here: "):
                call(impl)
    names = "auto, reference, torch, cpu, triton, flash, fla"
    with pytest.raises(UnsupportedImplementationError, match=f"{op}: impl must be one of {names}, got 'fast'"):
        call("fast")


@pytest.mark.parametrize(("torch_too", "fallback"), [(True, "torch"), (False, "reference")])
def test_auto_falls_back_if_the_kernel_cannot_run(torch_too: bool, fallback: str) -> None:
    assert choose("op", "auto", ROWS, cpu=lambda: None, torch=torch_too) == "cpu"
    assert choose("op", "auto", ROWS, cpu=lambda: "no", triton=lambda: None, torch=torch_too) == fallback
    assert choose("op", "auto", ROWS, torch=torch_too) == fallback


_IDS = torch.zeros(3, dtype=torch.int64)


def _attend(query: Tensor = HEADS, key: Tensor = HEADS, value: Tensor = HEADS, **options: Any) -> object:
    return tree_attention(query, key, value, ENDS, scale=1.0, **options)


def _logprob(hidden: Tensor = ROWS, weight: Tensor = ROWS, **options: Any) -> object:
    return linear_logprob(hidden, weight, _IDS, **options)


def _norm(input: Tensor = ROWS, weight: Tensor = ROWS[0]) -> object:
    return rms_norm(input, weight, 1e-6)


def _product(input: Tensor = ROWS, weight: Tensor = ROWS, bias: Tensor | None = None) -> object:
    return linear(input, weight, bias)


@pytest.mark.parametrize(
    ("call", "change", "message"),
    [
        (_attend, {"value": HEADS[:2]}, r"expected .* value \[Tk, 2, 8\]"),
        (_attend, {"key": HEADS[:, :1], "value": HEADS}, r"expected .* value \[Tk, 1, 8\]"),
        (_attend, {"key": HEADS.double()}, "key must be float32 like query, got float64"),
        (_attend, {"value": HEADS.to("meta")}, "value must be on cpu like query, got meta"),
        (_attend, {"query": HEADS[..., :4], "key": HEADS[..., :4]}, "head size must be a multiple of 8"),
        (_attend, {"softcap": -1.0}, "softcap must be positive"),
        (_attend, {"input_precision": "bf16x2"}, "input_precision must be None or 'bf16x3'"),
        (_logprob, {"weight": ROWS.double()}, "weight must be float32 like hidden, got float64"),
        (_logprob, {"bias": torch.ones(3).double()}, "bias must be float32 like hidden, got float64"),
        (_logprob, {"weight": ROWS[:, :7]}, r"expected hidden \[R, E\] and weight \[V, E\]"),
        (_logprob, {"softcap": 0.0}, "softcap must be positive"),
        (_norm, {"weight": ROWS[0].double()}, "weight must be float32 like input, got float64"),
        (_norm, {"input": ROWS.bfloat16()}, "input must be float32 or float64, got bfloat16"),
        (_product, {"weight": ROWS.to("meta")}, "weight must be on cpu like input, got meta"),
        (_product, {"bias": torch.ones(3, device="meta")}, "bias must be on cpu like input, got meta"),
    ],
)
def test_a_call_unlike_one_that_was_served_is_checked(
    call: Callable[..., object], change: dict[str, Any], message: str
) -> None:
    with torch.inference_mode():
        for _ in range(2):
            call()
            with pytest.raises(InputError, match=message):
                call(**change)


def test_a_served_call_that_records_gradients_is_checked() -> None:
    graded = HEADS.clone().requires_grad_()
    with torch.no_grad():
        _attend(graded)
    with pytest.raises(InputError, match="query requires a gradient"):
        _attend(graded)


def test_doubles_are_not_served_like_floats() -> None:
    with torch.inference_mode():
        _attend()
        doubles = HEADS.double()
        assert tree_attention(doubles, doubles, doubles, ENDS, scale=1.0).dtype == torch.float64
        assert linear_logprob(ROWS.double(), ROWS.double(), _IDS).dtype == torch.float64
        assert rms_norm(ROWS.double(), ROWS[0].double(), 1e-6).dtype == torch.float64
