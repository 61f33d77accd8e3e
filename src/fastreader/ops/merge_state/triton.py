# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""merge_state in Triton: attention over a union of disjoint key sets from the attention over each.

    lse = log sum_s exp(lse_s),    out = sum_s exp(lse_s - lse) out_s

One program takes BLOCK_R (token, head) rows. States that saw nothing (lse -inf) weigh 0, and a row whose states
are all empty gives output 0 and lse -inf. Sums are float32; the log-sum-exp is natural.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastreader.ops.triton_support import ceil_div, interpreting, power_of_2, triton_op

_VALUES = 8 * 256  # of a program: 16 registers per thread in 4 warps


def options(size: int) -> dict[str, Any]:
    """Return the constants and options of a launch for values of `size`."""
    block = power_of_2(size)
    rows = min(8, _VALUES // block)
    return {"DV": size, "BLOCK_DV": block, "BLOCK_R": rows, "num_warps": 4, "enable_fp_fusion": True}


@triton.jit
def _finite(b_lse):
    """Return the log-sum-exp, with 0 for -inf: exp(-inf - 0) is 0 and exp(-inf - -inf) would be NaN."""
    return tl.where(b_lse == float("-inf"), 0.0, b_lse)


@triton.jit(do_not_specialize=["rows", "states"])
def merge_stack_kernel(
    part_ptr,  # [S, R, Dv]
    part_lse_ptr,  # [S, R]
    out_ptr,  # [R, Dv]
    lse_ptr,  # [R] or None
    states,
    rows,
    DV: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Merge S stacked states, each contiguous over rows."""
    o_r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)  # [R]
    o_d = tl.arange(0, BLOCK_DV)  # [Dv]
    m_r = o_r < rows  # [R]
    m_rd = m_r[:, None] & (o_d < DV)[None, :]  # [R, Dv]

    b_max = tl.full([BLOCK_R], float("-inf"), tl.float32)  # [R]
    for state in range(states):
        b_lse = tl.load(part_lse_ptr + (state * rows.to(tl.int64) + o_r), mask=m_r, other=float("-inf"))  # [R]
        b_max = tl.maximum(b_max, b_lse)
    b_base = _finite(b_max)  # [R]

    b_sum = tl.zeros([BLOCK_R], tl.float32)  # [R]
    b_out = tl.zeros([BLOCK_R, BLOCK_DV], tl.float32)  # [R, Dv]
    for state in range(states):
        b_lse = tl.load(part_lse_ptr + (state * rows.to(tl.int64) + o_r), mask=m_r, other=float("-inf"))  # [R]
        b_weight = tl.exp(b_lse - b_base)  # [R]
        p_part = part_ptr + (state * rows.to(tl.int64) + o_r)[:, None] * DV + o_d[None, :]
        b_out += b_weight[:, None] * tl.load(p_part, mask=m_rd, other=0.0).to(tl.float32)  # [R, Dv]
        b_sum += b_weight

    b_out = b_out / tl.where(b_sum == 0.0, 1.0, b_sum)[:, None]
    tl.store(out_ptr + o_r[:, None] * DV + o_d[None, :], b_out.to(out_ptr.dtype.element_ty), mask=m_rd)
    if lse_ptr is not None:
        tl.store(lse_ptr + o_r, b_base + tl.log(b_sum), mask=m_r)


@triton.jit(do_not_specialize=["rows"])
def merge_pair_kernel(
    out_a_ptr,  # [T, H, Dv]
    lse_a_ptr,  # [T, H]
    out_b_ptr,  # [T, H, Dv]
    lse_b_ptr,  # [T, H]
    out_ptr,  # [T, H, Dv], contiguous
    lse_ptr,  # [T, H], contiguous
    rows,
    heads,
    stride_out_a_token,
    stride_out_a_head,
    stride_out_a_size,
    stride_lse_a_token,
    stride_lse_a_head,
    stride_out_b_token,
    stride_out_b_head,
    stride_out_b_size,
    stride_lse_b_token,
    stride_lse_b_head,
    DV: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Merge two states of any strides, a row for each token and head."""
    o_r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)  # [R]
    o_t, o_h = o_r // heads, o_r % heads  # [R]
    o_d = tl.arange(0, BLOCK_DV)  # [Dv]
    m_r = o_r < rows  # [R]
    m_rd = m_r[:, None] & (o_d < DV)[None, :]  # [R, Dv]

    p_lse_a = lse_a_ptr + o_t * stride_lse_a_token + o_h * stride_lse_a_head
    p_lse_b = lse_b_ptr + o_t * stride_lse_b_token + o_h * stride_lse_b_head
    b_lse_a = tl.load(p_lse_a, mask=m_r, other=float("-inf")).to(tl.float32)  # [R]
    b_lse_b = tl.load(p_lse_b, mask=m_r, other=float("-inf")).to(tl.float32)  # [R]
    b_base = _finite(tl.maximum(b_lse_a, b_lse_b))  # [R]
    b_weight_a, b_weight_b = tl.exp(b_lse_a - b_base), tl.exp(b_lse_b - b_base)  # [R]
    b_sum = b_weight_a + b_weight_b  # [R]

    p_a = out_a_ptr + (o_t * stride_out_a_token + o_h * stride_out_a_head)[:, None] + o_d[None, :] * stride_out_a_size
    p_b = out_b_ptr + (o_t * stride_out_b_token + o_h * stride_out_b_head)[:, None] + o_d[None, :] * stride_out_b_size
    b_a = tl.load(p_a, mask=m_rd, other=0.0).to(tl.float32)  # [R, Dv]
    b_b = tl.load(p_b, mask=m_rd, other=0.0).to(tl.float32)  # [R, Dv]
    b_out = (b_weight_a[:, None] * b_a + b_weight_b[:, None] * b_b) / tl.where(b_sum == 0.0, 1.0, b_sum)[:, None]

    tl.store(out_ptr + o_r[:, None] * DV + o_d[None, :], b_out.to(out_ptr.dtype.element_ty), mask=m_rd)
    tl.store(lse_ptr + o_r, b_base + tl.log(b_sum), mask=m_r)


def merge_stack_triton(part: Tensor, part_lse: Tensor, out: Tensor, lse: Tensor | None) -> None:
    """Merge stacked states into `out` and `lse`, in place.

    Args:
        part: float32 [S, T, H, Dv], contiguous.
        part_lse: float32 [S, T, H], contiguous, natural logarithm.
        out: [T, H, Dv], contiguous, any supported dtype.
        lse: float32 [T, H], contiguous, or None.
    """
    states, tokens, heads, size = part.shape
    rows = tokens * heads
    if rows == 0:
        return
    launch = options(size)
    merge_stack_kernel[(ceil_div(rows, launch["BLOCK_R"]),)](part, part_lse, out, lse, states, rows, **launch)


class _MergeLaunch(NamedTuple):
    """Arguments of the op: two states as `merge_state` takes them."""

    out_a: Tensor
    lse_a: Tensor
    out_b: Tensor
    lse_b: Tensor


def _fake(call: _MergeLaunch) -> tuple[Tensor, Tensor]:
    return call.out_a.new_empty(call.out_a.shape), call.lse_a.new_empty(call.lse_a.shape)


@triton_op("merge_state_triton", _MergeLaunch, 2, _fake)
def _run(call: _MergeLaunch) -> tuple[Tensor, Tensor]:
    out_a, lse_a = call.out_a, call.lse_a
    tokens, heads, size = out_a.shape
    # The interpreter truncates when it casts to bfloat16, so there PyTorch casts.
    wide = torch.float32 if interpreting() else out_a.dtype
    out = torch.empty((tokens, heads, size), dtype=wide, device=out_a.device)
    lse = torch.empty((tokens, heads), dtype=torch.float32, device=out_a.device)
    rows = tokens * heads
    if rows:
        launch = options(size)
        merge_pair_kernel[(ceil_div(rows, launch["BLOCK_R"]),)](
            *call,
            out,
            lse,
            rows,
            heads,
            *(step for tensor in call for step in tensor.stride()),
            **launch,
        )
    return out.to(out_a.dtype), lse.to(lse_a.dtype)


def merge_state_triton(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Merge two states as `merge_state` does."""
    return _run(_MergeLaunch(out_a, lse_a, out_b, lse_b))
