# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Linear attention and the delta rules in Triton, a chain chunk by chunk (arXiv 2405.21060, 2412.06464, 2510.26692).

With G_i = g_1 + ... + g_i within a chunk of L tokens, S_0 before it, and P and M from `triton_pairs`:

    U = M (V - (exp(G) K) S_0), or V for linear attention
    O = (exp(G) Q) S_0 + P U,    S = exp(G_L) S_0 + (exp(G_L - G) K)^T U

The first launch computes P and M of all chunks; then each level is one launch, a program a chain, head and block of
values. A program keeps the transpose of its part of the state, [BLOCK_DV, D], in registers. So the rows of all products
are values: the state and U are left operands where they are, and no warp repeats another's work, as over the few tokens
of a chunk. The state is cut into parts of BLOCK_D columns, of which one at a time is split into terms.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from fastreader.ops.recurrent.plan import ScanPlan
from fastreader.ops.recurrent.triton_pairs import inverse_norm, pairs
from fastreader.ops.recurrent.triton_walk import (
    PRECISION,
    load_chain,
    load_rows,
    load_state,
    output_like,
    store_state,
    walk,
)
from fastreader.ops.triton_support import ceil_div, on_its_device, power_of_2, rows_apart, target_of

CHUNK = 16  # tokens


@triton.jit(do_not_specialize=["first"])
def chunks_kernel(
    query_ptr,  # [T, Hk, D]
    key_ptr,  # [T, Hk, D]
    value_ptr,  # [T, Hv, Dv]
    gate_ptr,  # [T, Hv] or [T, Hv, D]
    score_ptr,  # [T, Hv, C], P
    system_ptr,  # [T, Hv, C], M, or None for linear attention
    out_ptr,  # [T, Hv, Dv], contiguous
    chain_ptr,  # [N, 5]
    before_ptr,  # [., Hv, D, Dv]
    after_ptr,  # [., Hv, D, Dv]
    kept_ptr,  # [K, Hv, D, Dv]
    first,
    stride_query_token,
    stride_query_head,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    stride_gate_token,
    stride_gate_head,
    scale,
    epsilon,
    GROUPS: tl.constexpr,
    NORMED: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    CHANNELS: tl.constexpr,
    CHUNK: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Follow one chain for one head and a block of its values, with a gate a channel if CHANNELS."""
    head, heads = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    start, length, before, after, kept = load_chain(chain_ptr, first + tl.program_id(0))
    o_c = tl.arange(0, CHUNK)  # [C]
    o_v = tl.program_id(2) * BLOCK_DV + tl.arange(0, BLOCK_DV)  # [Dv]
    m_v = o_v < DV  # [Dv]
    size = heads.to(tl.int64) * (D * DV)
    o_head = head * (D * DV)

    b_states = ()
    for part in tl.static_range(PARTS):
        o_d = part * BLOCK_D + tl.arange(0, BLOCK_D)  # [D']
        o_state, m_state = o_d[None, :] * DV + o_v[:, None], (o_d < D)[None, :] & m_v[:, None]  # [Dv, D']
        b_states += (load_state(before_ptr + o_head, before, size, o_state, m_state),)  # type: ignore[assignment]

    for done in tl.range(0, length, CHUNK, disable_licm=True):  # offsets of all parts would fill the registers
        token = start + done
        p_query = query_ptr + token * stride_query_token + head // GROUPS * stride_query_head
        p_key = key_ptr + token * stride_key_token + head // GROUPS * stride_key_head
        p_value = value_ptr + token * stride_value_token + head * stride_value_head
        p_gate = gate_ptr + token * stride_gate_token + head * stride_gate_head
        row = token * heads + head  # of outputs and pairs, `heads` of them to the next token
        m_c = o_c < length - done  # [C]
        m_cv = m_c[:, None] & m_v[None, :]  # [C, Dv]

        b_found = tl.zeros([BLOCK_DV, CHUNK], tl.float32)  # [Dv, C], what keys read
        b_out = tl.zeros([BLOCK_DV, CHUNK], tl.float32)  # [Dv, C]
        b_keys = tl.zeros([CHUNK], tl.float32)  # [C], sums of squares
        b_queries = tl.zeros([CHUNK], tl.float32)  # [C]
        for part in tl.static_range(PARTS):
            o_d = part * BLOCK_D + tl.arange(0, BLOCK_D)  # [D']
            m_cd = m_c[:, None] & (o_d < D)[None, :]  # [C, D']
            b_key = load_rows(p_key, stride_key_token, o_c, o_d, m_cd)  # [C, D']
            b_query = load_rows(p_query, stride_query_token, o_c, o_d, m_cd)  # [C, D']
            if NORMED:
                b_keys += tl.sum(b_key * b_key, axis=1)
                b_queries += tl.sum(b_query * b_query, axis=1)
            if CHANNELS:
                b_gate = load_rows(p_gate, stride_gate_token, o_c, o_d, m_cd)  # [C, D']
                b_grown = tl.exp(tl.cumsum(b_gate, axis=0))  # [C, D']
                b_key, b_query = b_key * b_grown, b_query * b_grown
            if system_ptr is not None:
                b_found = tl.dot(b_states[part], tl.trans(b_key), b_found, input_precision=PRECISION)
            b_out = tl.dot(b_states[part], tl.trans(b_query), b_out, input_precision=PRECISION)

        b_on_key = tl.full([CHUNK], 1.0, tl.float32)  # [C], factors on keys and queries
        b_on_query = tl.full([CHUNK], scale, tl.float32)  # [C]
        if NORMED:
            b_on_key *= inverse_norm(b_keys, epsilon)
            b_on_query *= inverse_norm(b_queries, epsilon)
        b_left = b_on_key  # [C], factors on keys at the chunk's end
        b_stays = 1.0
        if not CHANNELS:
            b_gate = tl.load(p_gate + o_c * stride_gate_token, mask=m_c, other=0.0).to(tl.float32)  # [C]
            b_total, b_last = tl.cumsum(b_gate, axis=0), tl.sum(b_gate, axis=0)
            b_left = b_on_key * tl.exp(b_last - b_total)
            b_stays = tl.exp(b_last)
            b_on_key, b_on_query = b_on_key * tl.exp(b_total), b_on_query * tl.exp(b_total)

        b_made = tl.trans(load_rows(p_value, stride_value_token, o_c, o_v, m_cv))  # [Dv, C]
        o_pair = o_c[:, None] * (heads * CHUNK) + o_c[None, :]  # [C, C]
        if system_ptr is not None:
            b_system = tl.load(system_ptr + row * CHUNK + o_pair, mask=m_c[:, None], other=0.0)  # [C, C]
            b_made = tl.dot(b_made - b_found * b_on_key[None, :], tl.trans(b_system), input_precision=PRECISION)
        b_score = tl.load(score_ptr + row * CHUNK + o_pair, mask=m_c[:, None], other=0.0)  # [C, C]
        b_out = tl.dot(b_made, tl.trans(b_score), b_out * b_on_query[None, :], input_precision=PRECISION)
        p_out = out_ptr + row * DV + (o_c[:, None] * (heads * DV) + o_v[None, :])
        tl.store(p_out, tl.trans(b_out).to(out_ptr.dtype.element_ty), mask=m_cv)

        b_made *= b_left[None, :]
        b_before = b_states
        b_states = ()
        for part in tl.static_range(PARTS):
            o_d = part * BLOCK_D + tl.arange(0, BLOCK_D)  # [D']
            m_cd = m_c[:, None] & (o_d < D)[None, :]  # [C, D']
            b_key, b_state = load_rows(p_key, stride_key_token, o_c, o_d, m_cd), b_before[part] * b_stays
            if CHANNELS:
                b_gate = load_rows(p_gate, stride_gate_token, o_c, o_d, m_cd)  # [C, D']
                b_last = tl.sum(b_gate, axis=0)  # [D']
                b_key *= tl.exp(b_last[None, :] - tl.cumsum(b_gate, axis=0))
                b_state *= tl.exp(b_last)[None, :]
            b_states += (tl.dot(b_made, b_key, b_state, input_precision=PRECISION),)  # type: ignore[assignment]

    for part in tl.static_range(PARTS):
        o_d = part * BLOCK_D + tl.arange(0, BLOCK_D)  # [D']
        o_state, m_state = o_d[None, :] * DV + o_v[:, None], (o_d < D)[None, :] & m_v[:, None]  # [Dv, D']
        store_state(after_ptr + o_head, after, kept_ptr + o_head, kept, size, o_state, m_state, b_states[part])


@on_its_device
def gated_delta_rule_triton(
    query, key, value, gate, beta, plan: ScanPlan, *, initial, scale=1.0, norm_epsilon=None
) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states of `gated_delta_rule`, or of `linear_attention` if beta is None."""
    query, key, value, gate = (rows_apart(x) for x in (query, key, value, gate))
    beta = None if beta is None else rows_apart(beta)
    _, key_heads, size = query.shape
    _, heads, value_size = value.shape
    chunks, channels = plan.walks.chunks(CHUNK), gate.dim() == 3
    scores, system = pairs(query, key, gate, beta, chunks, chunk=CHUNK, scale=scale, norm_epsilon=norm_epsilon)
    out = output_like(value)
    constants = options(target_of(value.device), size, value_size, delta=system is not None, channels=channels)
    blocks = ceil_div(value_size, constants["BLOCK_DV"])

    operands = (query, key, value, gate, scores, system, out)
    steps = (*query.stride()[:2], *key.stride()[:2], *value.stride()[:2], *gate.stride()[:2])

    def launch(count: int, chains: tuple[Any, ...]) -> None:
        chunks_kernel[(count, heads, blocks)](
            *operands,
            *chains,
            *steps,
            scale,
            norm_epsilon or 0.0,
            GROUPS=heads // key_heads,
            NORMED=norm_epsilon is not None,
            D=size,
            DV=value_size,
            CHANNELS=channels,
            **constants,
        )

    return out, walk(plan, (heads, size, value_size), initial, launch)


def linear_attention_triton(
    query: Tensor, key: Tensor, value: Tensor, gate: Tensor, plan: ScanPlan, *, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states of `linear_attention`."""
    return gated_delta_rule_triton(query, key, value, gate, None, plan, initial=initial)


def options(target: int, size: int, value_size: int, *, delta: bool, channels: bool) -> dict[str, int]:
    """Return the constants and options of a launch.

    At these blocks no kernel runs out of registers, under Triton 3.6 or 3.9: see tests/ops/compile_report.py.

    Args:
        target: see `triton_support.target_of`.
        size, value_size: of keys and values.
        delta: whether it is a delta rule.
        channels: whether the gate has channels.
    """
    wide = size <= (64 if channels or target == 120 else 128)
    block = 32
    if wide and not channels:
        block = 16 if target not in (90, 100) else 64 if delta else 32
    block = max(16, min(block, power_of_2(size)))
    values = 64 if wide else 16
    if target == 100 and delta and size > 64:  # Triton 3.6 makes an empty kernel of the one with tcgen05
        values = min(values, 32)
    warps = 4
    if target == 120 and channels and not wide:  # with four, one of the two versions runs out at any block
        block, warps = 64, 8
    return {
        "CHUNK": CHUNK,
        "BLOCK_D": block,
        "PARTS": ceil_div(size, block),
        "BLOCK_DV": max(16, min(values, power_of_2(value_size))),
        "num_warps": warps,
        "num_stages": 1,
        "enable_fp_fusion": True,
    }
