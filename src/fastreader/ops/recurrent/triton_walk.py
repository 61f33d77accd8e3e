# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Walking over the chains of a tree in Triton: one launch a level, a program a chain and part of its state.

A program reads its chain and the state before it, keeps the state in registers up to the chain's end, and writes it for
the chains that follow and for the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastreader.ops.recurrent.chains import COLUMNS
from fastreader.ops.recurrent.plan import ScanPlan
from fastreader.ops.triton_support import interpreting

_COLUMNS = tl.constexpr(COLUMNS)
# Three TF32 products give a float32 one to about 2^-21; a TF32 product has 11 bits, and plain float32 no matrix unit.
PRECISION = tl.constexpr("tf32x3")

# Launches the chains of a level: their number, and the kernels' arguments `chain_ptr` (the table), `before_ptr`,
# `after_ptr`, `kept_ptr` (states) and `first` (row of the table).
LaunchLevel = Callable[[int, tuple[Any, ...]], None]


@triton.jit
def load_chain(chain_ptr, chain):
    """Return a chain's first token, length, and the rows of its states before, after and kept (-1 for none)."""
    p_chain = chain_ptr + chain * _COLUMNS
    start, length = tl.load(p_chain).to(tl.int64), tl.load(p_chain + 1)
    before, after, kept = (tl.load(p_chain + 2), tl.load(p_chain + 3), tl.load(p_chain + 4))
    return start, length, before.to(tl.int64), after.to(tl.int64), kept.to(tl.int64)


@triton.jit
def load_rows(ptr, stride_token, o_c, o_d, m_cd):
    """Return the values [C, D'] of tokens o_c at columns o_d, in float32."""
    return tl.load(ptr + (o_c[:, None] * stride_token + o_d[None, :]), mask=m_cd, other=0.0).to(tl.float32)


@triton.jit
def load_state(before_ptr, before, size, o_state, m_state):
    """Return part of the state in a row of states of `size` values, zeros for row -1."""
    b_state = tl.zeros(o_state.shape, tl.float32)
    if before >= 0:
        b_state = tl.load(before_ptr + before * size + o_state, mask=m_state, other=0.0)
    return b_state


@triton.jit
def store_state(after_ptr, after, kept_ptr, kept, size, o_state, m_state, b_state):
    """Write part of a state to the rows that need it."""
    if after >= 0:
        tl.store(after_ptr + after * size + o_state, b_state, mask=m_state)
    if kept >= 0:
        tl.store(kept_ptr + kept * size + o_state, b_state, mask=m_state)


def walk(plan: ScanPlan, shape: tuple[int, ...], initial: Tensor | None, launch: LaunchLevel) -> Tensor:
    """Launch the levels of a plan in order, and return the states after the kept tokens, float32 [K, *shape]."""
    walks = plan.walks
    kept = torch.empty((len(plan.keep), *shape), dtype=torch.float32, device=plan.device)
    before = kept.new_empty(0) if initial is None else initial.to(torch.float32).contiguous()
    for first, count, states in walks.levels:
        after = torch.empty((states, *shape), dtype=torch.float32, device=plan.device)
        launch(count, (walks.table, before, after, kept, first))
        before = after
    return kept if walks.repeats is None else kept[walks.repeats]


def output_like(values: Tensor) -> Tensor:
    """Return an empty contiguous output, in float32 in the interpreter, whose casts to bfloat16 truncate."""
    dtype = torch.float32 if interpreting() else values.dtype
    return torch.empty(values.shape, dtype=dtype, device=values.device)
