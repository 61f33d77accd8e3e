# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""A gated linear recurrence in Triton, a chain token by token (RG-LRU of Griffin, arXiv 2402.19427, equation 4).

    h_t = a_t h_{t-1} + x_t

One program takes a chain and BLOCK_C channels, and keeps their states in registers.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from fastreader.ops.recurrent.plan import ScanPlan
from fastreader.ops.recurrent.triton_walk import load_chain, load_state, output_like, rows_apart, store_state, walk
from fastreader.ops.triton_support import ceil_div, on_its_device

OPTIONS = {"BLOCK_C": 128, "STAGES": 4, "num_warps": 2, "enable_fp_fusion": True}


@triton.jit(do_not_specialize=["first"])
def linear_recurrence_kernel(
    input_ptr,  # [T, C]
    decay_ptr,  # [T, C]
    out_ptr,  # [T, C], contiguous
    chain_ptr,  # [N, 5]
    before_ptr,  # [., C]
    after_ptr,  # [., C]
    kept_ptr,  # [K, C]
    first,
    stride_input_token,
    stride_decay_token,
    WIDTH: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Follow one chain for a block of channels."""
    start, length, before, after, kept = load_chain(chain_ptr, first + tl.program_id(0))
    o_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)  # [C]
    m_c = o_c < WIDTH  # [C]
    b_state = load_state(before_ptr, before, WIDTH, o_c, m_c)  # [C]
    for i in tl.range(0, length, num_stages=STAGES):
        token = start + i
        b_input = tl.load(input_ptr + token * stride_input_token + o_c, mask=m_c, other=0.0).to(tl.float32)  # [C]
        b_decay = tl.load(decay_ptr + token * stride_decay_token + o_c, mask=m_c, other=0.0).to(tl.float32)  # [C]
        b_state = b_decay * b_state + b_input
        tl.store(out_ptr + token * WIDTH + o_c, b_state.to(out_ptr.dtype.element_ty), mask=m_c)
    store_state(after_ptr, after, kept_ptr, kept, WIDTH, o_c, m_c, b_state)


@on_its_device
def linear_recurrence_triton(
    input: Tensor, decay: Tensor, plan: ScanPlan, *, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states of `linear_recurrence`."""
    input, decay = rows_apart(input), rows_apart(decay)
    size = input.shape[1]
    out = output_like(input)

    operands, steps = (input, decay, out), (input.stride(0), decay.stride(0))

    def launch(count: int, chains: tuple[Any, ...]) -> None:
        grid = (count, ceil_div(size, OPTIONS["BLOCK_C"]))
        linear_recurrence_kernel[grid](*operands, *chains, *steps, WIDTH=size, **OPTIONS)

    return out, walk(plan, (size,), initial, launch)
