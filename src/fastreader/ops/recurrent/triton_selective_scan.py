# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""The selective scan of Mamba in Triton, a chain token by token (Gu & Dao 2023, arXiv 2312.00752, algorithm 2).

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T,    y_t = h_t C_t

Every element of h decays at its own rate, so there is no product of matrices to compute several tokens by. One program
takes a chain and BLOCK_D channels, and keeps their states in registers.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from fastreader.ops.recurrent.plan import ScanPlan
from fastreader.ops.recurrent.triton_walk import load_chain, load_state, output_like, rows_apart, store_state, walk
from fastreader.ops.triton_support import ceil_div, on_its_device, power_of_2

_STATES = 2**11  # of a program: 16 registers per thread in 4 warps


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
    input: Tensor,
    step: Tensor,
    transition: Tensor,
    entry: Tensor,
    readout: Tensor,
    plan: ScanPlan,
    *,
    initial: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states of `selective_scan`."""
    input, step, entry, readout = (rows_apart(x) for x in (input, step, entry, readout))
    transition = transition.contiguous()
    size, states = transition.shape
    out = output_like(input)
    constants = options(size, states)
    blocks = ceil_div(size, constants["BLOCK_D"])

    operands = (input, step, transition, entry, readout, out)
    steps = (input.stride(0), step.stride(0), entry.stride(0), readout.stride(0))

    def launch(count: int, chains: tuple[Any, ...]) -> None:
        selective_scan_kernel[(count, blocks)](*operands, *chains, *steps, D=size, N=states, **constants)

    return out, walk(plan, (size, states), initial, launch)


def options(size: int, states: int) -> dict[str, int]:
    """Return the constants and options of a launch for `size` channels with this many states each."""
    block = power_of_2(states)
    channels = max(1, min(power_of_2(size), _STATES // block))
    return {"BLOCK_D": channels, "BLOCK_N": block, "STAGES": 3, "num_warps": 4, "enable_fp_fusion": True}
