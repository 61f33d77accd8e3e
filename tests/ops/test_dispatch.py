"""The names of implementations are the same for every op; each op runs a named one or raises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fastreader.errors import UnsupportedImplementationError
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
    names = "auto, reference, torch, cpu, triton, flash"
    with pytest.raises(UnsupportedImplementationError, match=f"{op}: impl must be one of {names}, got 'fast'"):
        call("fast")


@pytest.mark.parametrize(("torch_too", "fallback"), [(True, "torch"), (False, "reference")])
def test_auto_falls_back_if_the_kernel_cannot_run(torch_too: bool, fallback: str) -> None:
    assert choose("op", "auto", ROWS, cpu=lambda: None, torch=torch_too) == "cpu"
    assert choose("op", "auto", ROWS, cpu=lambda: "no", triton=lambda: None, torch=torch_too) == fallback
    assert choose("op", "auto", ROWS, torch=torch_too) == fallback
