# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""The recurrences in Triton by the names of their ops, and the kernels of the two that go token by token.

The selective scan of Mamba (arXiv 2312.00752, algorithm 2) and the RG-LRU of Griffin (arXiv 2402.19427, equation 4):

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T,    y_t = h_t C_t
    h_t = a_t h_{t-1} + x_t

Every element of h decays at its own rate, so there is no product of matrices to compute several tokens by. One program
takes a chain and a block of channels, and keeps their states in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from fastreader.ops.recurrent.plan import ScanPlan
from fastreader.ops.recurrent.triton_chunks import gated_delta_rule_triton, linear_attention_triton
from fastreader.ops.recurrent.triton_walk import load_chain, load_state, output_like, store_state, walk
from fastreader.ops.triton_support import ceil_div, on_its_device, power_of_2, rows_apart

RECURRENCE = {"BLOCK_C": 128, "STAGES": 4, "num_warps": 2, "enable_fp_fusion": True}  # constants of its launches
_STATES = 2**11  # of a program of the scan: 16 registers per thread in 4 warps


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
        grid = (count, ceil_div(size, RECURRENCE["BLOCK_C"]))
        linear_recurrence_kernel[grid](*operands, *chains, *steps, WIDTH=size, **RECURRENCE)

    return out, walk(plan, (size,), initial, launch)


@triton.jit(do_not_specialize=["first"])
def selective_scan_kernel(
    input_ptr,  # [T, D]
    step_ptr,  # [T, D]
    transition_ptr,  # [D, N], contiguous
    entry_ptr,  # [T, N]
    readout_ptr,  # [T, N]
    out_ptr,  # [T, D], contiguous
    chain_ptr,  # [N, 5]
    before_ptr,  # [., D, N]
    after_ptr,  # [., D, N]
    kept_ptr,  # [K, D, N]
    first,
    stride_input_token,
    stride_step_token,
    stride_entry_token,
    stride_readout_token,
    D: tl.constexpr,
    N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Follow one chain for a block of channels."""
    start, length, before, after, kept = load_chain(chain_ptr, first + tl.program_id(0))
    o_d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)  # [D]
    o_n = tl.arange(0, BLOCK_N)  # [N]
    m_d, m_n = o_d < D, o_n < N
    o_state, m_state = o_d[:, None] * N + o_n[None, :], m_d[:, None] & m_n[None, :]  # [D, N]
    b_rate = tl.load(transition_ptr + o_state, mask=m_state, other=0.0).to(tl.float32)  # [D, N]
    b_state = load_state(before_ptr, before, D * N, o_state, m_state)  # [D, N]
    for i in tl.range(0, length, num_stages=STAGES):
        token = start + i
        b_input = tl.load(input_ptr + token * stride_input_token + o_d, mask=m_d, other=0.0).to(tl.float32)  # [D]
        b_step = tl.load(step_ptr + token * stride_step_token + o_d, mask=m_d, other=0.0).to(tl.float32)  # [D]
        b_entry = tl.load(entry_ptr + token * stride_entry_token + o_n, mask=m_n, other=0.0).to(tl.float32)  # [N]
        b_readout = tl.load(readout_ptr + token * stride_readout_token + o_n, mask=m_n, other=0.0).to(tl.float32)  # [N]
        b_state = tl.exp(b_step[:, None] * b_rate) * b_state + (b_step * b_input)[:, None] * b_entry[None, :]
        b_out = tl.sum(b_state * b_readout[None, :], axis=1)  # [D]
        tl.store(out_ptr + token * D + o_d, b_out.to(out_ptr.dtype.element_ty), mask=m_d)
    store_state(after_ptr, after, kept_ptr, kept, D * N, o_state, m_state, b_state)


@on_its_device
def selective_scan_triton(
    x: Tensor, dt: Tensor, rate: Tensor, b: Tensor, c: Tensor, plan: ScanPlan, *, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states of `selective_scan`."""
    x, dt, b, c = (rows_apart(rows) for rows in (x, dt, b, c))
    rate = rate.contiguous()
    size, states = rate.shape
    out = output_like(x)
    constants = scan_options(size, states)
    blocks = ceil_div(size, constants["BLOCK_D"])

    operands, steps = (x, dt, rate, b, c, out), (x.stride(0), dt.stride(0), b.stride(0), c.stride(0))

    def launch(count: int, chains: tuple[Any, ...]) -> None:
        selective_scan_kernel[(count, blocks)](*operands, *chains, *steps, D=size, N=states, **constants)

    return out, walk(plan, (size, states), initial, launch)


def scan_options(size: int, states: int) -> dict[str, int]:
    """Return the constants and options of a launch for `size` channels with this many states each."""
    block = power_of_2(states)
    channels = max(1, min(power_of_2(size), _STATES // block))
    return {"BLOCK_D": channels, "BLOCK_N": block, "STAGES": 3, "num_warps": 4, "enable_fp_fusion": True}


# Each takes the operands of its op in order, of types that may differ, the plan and initial states.
SCANS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "gated_delta_rule": gated_delta_rule_triton,
    "linear_attention": linear_attention_triton,
    "linear_recurrence": linear_recurrence_triton,
    "selective_scan": selective_scan_triton,
}
