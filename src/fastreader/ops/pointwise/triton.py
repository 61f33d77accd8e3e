# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""rms_norm, rotary and gate in Triton: computed in float32, each value read and written once.

PyTorch takes six to eight kernels for each, and every one of them moves the whole tensor. Widths and heads are
specialised, since a model fixes them; the number of tokens is not.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastreader.ops.triton_support import ceil_div, on_its_device, power_of_2, rows_apart

_TILE = 2048  # values of a program: 16 per thread in 4 warps
_GELU = tl.constexpr(2.0 * math.sqrt(2.0 / math.pi))


@triton.jit
def _sigmoid(b_x):
    """Return 1 / (1 + exp(-x)) [...], without overflow on either side."""
    b_e = tl.exp(-tl.abs(b_x))
    return tl.where(b_x < 0, b_e, 1.0) / (1.0 + b_e)


@triton.jit(do_not_specialize=["rows"])
def rms_norm_kernel(
    input_ptr,  # [T, E]
    weight_ptr,  # [E]
    out_ptr,  # [T, E], contiguous
    rows,
    stride,
    epsilon,
    WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """Normalise BLOCK_R rows."""
    o_r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)  # [R]
    o_e = tl.arange(0, BLOCK_E)  # [E]
    m_e = o_e < WIDTH  # [E]
    m_re = (o_r < rows)[:, None] & m_e[None, :]  # [R, E]
    b_x = tl.load(input_ptr + o_r[:, None] * stride + o_e[None, :], mask=m_re, other=0.0)  # [R, E]
    b_weight = tl.load(weight_ptr + o_e, mask=m_e, other=0.0)  # [E]
    b_scale = 1.0 / tl.sqrt_rn(tl.sum(b_x * b_x, axis=1) / WIDTH + epsilon)  # [R]
    b_out = b_x * b_scale[:, None] * b_weight[None, :]  # [R, E]
    tl.store(out_ptr + o_r[:, None] * WIDTH + o_e[None, :], b_out.to(out_ptr.dtype.element_ty), mask=m_re)


@triton.jit(do_not_specialize=["rows"])
def rotary_kernel(
    input_ptr,  # [T, H, D]
    cosine_ptr,  # [T, R], contiguous
    sine_ptr,  # [T, R], contiguous
    out_ptr,  # [T, H, D], contiguous
    rows,
    stride_token,
    stride_head,
    HEADS: tl.constexpr,
    TURNED: tl.constexpr,
    SIZE: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    """Turn BLOCK_R rows, one for each token and head, and pass heads from TURNED on unchanged."""
    o_r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)  # [R]
    o_t, o_h = o_r // HEADS, o_r % HEADS  # [R]
    o_d = tl.arange(0, BLOCK_HALF)  # [D']
    m_r = o_r < rows  # [R]
    m_rd = m_r[:, None] & (o_d < HALF)[None, :]  # [R, D']
    p_in = input_ptr + (o_t * stride_token + o_h * stride_head)[:, None] + o_d[None, :]
    p_angle = (o_t * (2 * HALF))[:, None] + o_d[None, :]
    p_out = out_ptr + (o_r * SIZE)[:, None] + o_d[None, :]
    b_low = tl.load(p_in, mask=m_rd, other=0.0)  # [R, D']
    b_high = tl.load(p_in + HALF, mask=m_rd, other=0.0)  # [R, D']
    m_angle = m_rd if TURNED == HEADS else m_rd & (o_h < TURNED)[:, None]  # [R, D'], else the angle is 0
    b_cosine = tl.load(cosine_ptr + p_angle, mask=m_angle, other=1.0)  # [R, D']
    b_sine = tl.load(sine_ptr + p_angle, mask=m_angle, other=0.0)  # [R, D']
    tl.store(p_out, (b_low * b_cosine - b_high * b_sine).to(out_ptr.dtype.element_ty), mask=m_rd)
    b_cosine = tl.load(cosine_ptr + p_angle + HALF, mask=m_angle, other=1.0)  # [R, D']
    b_sine = tl.load(sine_ptr + p_angle + HALF, mask=m_angle, other=0.0)  # [R, D']
    tl.store(p_out + HALF, (b_high * b_cosine + b_low * b_sine).to(out_ptr.dtype.element_ty), mask=m_rd)
    if SIZE > 2 * HALF:
        o_d = 2 * HALF + tl.arange(0, BLOCK_REST)  # [D - R]
        m_rd = m_r[:, None] & (o_d < SIZE)[None, :]  # [R, D - R]
        p_in = input_ptr + (o_t * stride_token + o_h * stride_head)[:, None] + o_d[None, :]
        b_rest = tl.load(p_in, mask=m_rd, other=0.0)  # [R, D - R]
        tl.store(out_ptr + (o_r * SIZE)[:, None] + o_d[None, :], b_rest.to(out_ptr.dtype.element_ty), mask=m_rd)


@triton.jit
def gate_kernel(
    gate_ptr,  # [T, F]
    up_ptr,  # [T, F]
    out_ptr,  # [T, F], contiguous
    stride_gate,
    stride_up,
    WIDTH: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """Gate one stretch of a row: silu, or the tanh approximation of GELU as x * sigmoid(2 u)."""
    o_t = tl.program_id(0).to(tl.int64)
    o_f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)  # [F]
    m_f = o_f < WIDTH  # [F]
    b_gate = tl.load(gate_ptr + o_t * stride_gate + o_f, mask=m_f, other=0.0).to(tl.float32)  # [F]
    b_up = tl.load(up_ptr + o_t * stride_up + o_f, mask=m_f, other=0.0).to(tl.float32)  # [F]
    b_inner = b_gate if SILU else _GELU * (b_gate + 0.044715 * b_gate * b_gate * b_gate)  # [F]
    b_out = b_gate * _sigmoid(b_inner) * b_up
    tl.store(out_ptr + o_t * WIDTH + o_f, b_out.to(out_ptr.dtype.element_ty), mask=m_f)


@on_its_device
def rms_norm_triton(input: Tensor, weight: Tensor, epsilon: float, bf16: bool) -> Tensor:
    """Run `rms_norm` in float32."""
    input = rows_apart(input)
    rows, width = input.shape
    out = torch.empty(input.shape, dtype=torch.bfloat16 if bf16 else torch.float32, device=input.device)
    if out.numel():
        block, block_r, warps = norm_tile(width)
        rms_norm_kernel[(ceil_div(rows, block_r),)](
            input,
            weight.contiguous(),
            out,
            rows,
            input.stride(0),
            epsilon,
            WIDTH=width,
            BLOCK_R=block_r,
            BLOCK_E=block,
            num_warps=warps,
        )
    return out


@on_its_device
def rotary_triton(input: Tensor, cosine: Tensor, sine: Tensor, bf16: bool, turned: int | None = None) -> Tensor:
    """Run `rotary` in float32 on the first `turned` heads, on all if None."""
    input = rows_apart(input)
    tokens, heads, size = input.shape
    half = cosine.shape[1] // 2
    out = torch.empty(input.shape, dtype=torch.bfloat16 if bf16 else torch.float32, device=input.device)
    if out.numel():
        block, rest, block_r = rotary_tile(size, half)
        rotary_kernel[(ceil_div(tokens * heads, block_r),)](
            input,
            cosine.contiguous(),
            sine.contiguous(),
            out,
            tokens * heads,
            input.stride(0),
            input.stride(1),
            HEADS=heads,
            TURNED=heads if turned is None else turned,
            SIZE=size,
            HALF=half,
            BLOCK_R=block_r,
            BLOCK_HALF=block,
            BLOCK_REST=rest,
        )
    return out


@on_its_device
def gate_triton(gate: Tensor, up: Tensor, activation: str, bf16: bool) -> Tensor:
    """Run `gate` in float32."""
    gate, up = rows_apart(gate), rows_apart(up)
    rows, width = gate.shape
    out = torch.empty(gate.shape, dtype=torch.bfloat16 if bf16 else torch.float32, device=gate.device)
    if out.numel():
        block = gate_tile(width)
        gate_kernel[(rows, ceil_div(width, block))](
            gate,
            up,
            out,
            gate.stride(0),
            up.stride(0),
            WIDTH=width,
            SILU=activation == "silu",
            BLOCK_F=block,
        )
    return out


def norm_tile(width: int) -> tuple[int, int, int]:
    """Return values and rows of a program of rms_norm_kernel, and its warps: with 16,384 values a thread holds 32."""
    block = power_of_2(width)
    return block, max(1, _TILE // block), max(4, min(16, block // 1024))


def rotary_tile(size: int, half: int) -> tuple[int, int, int]:
    """Return values turned in each half, values passed on, and rows of a program of rotary_kernel."""
    block, rest = power_of_2(max(half, 1)), power_of_2(max(size - 2 * half, 1))
    return block, rest, max(1, _TILE // (2 * max(block, rest)))


def gate_tile(width: int) -> int:
    """Return the number of values of a program of gate_kernel."""
    return int(min(_TILE, power_of_2(width)))
