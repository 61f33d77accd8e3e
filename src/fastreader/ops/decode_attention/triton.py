# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""decode_attention in Triton: one row of queries over its own ranges of keys.

    out_b = sum_j exp(s_bj - lse_b) v_j,    lse_b = log sum_j exp(s_bj),    j in the ranges of row b

One program takes a row, a key head (the query heads that share it are packed as rows of a matrix) and a share of the
row's keys, counted range after range; the partial states are merged afterwards. Ranges and positions are read from the
device: with positions a row sees the keys up to its own, so that the next token changes no argument of a launch.

The softmax is in base 2. Sums, maxima and the accumulator are float32. Values of a half type are multiplied by the
weights as a sum of two such numbers, since one would round them more than the values are rounded.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastreader.ops.attention_scores import capped, with_sink, with_slopes
from fastreader.ops.decode_attention.ranges import empty_results
from fastreader.ops.merge_state.triton import merge_stack_triton
from fastreader.ops.triton_support import ceil_div, compiler_options, interpreting, power_of_2, processors, triton_op

_LOG2_E = 1.0 / math.log(2.0)
_MAX_SPLITS = 64
_BLOCKS_PER_SPLIT = 4  # fewer key blocks are not worth a program


class DecodeAttentionConfig(NamedTuple):
    """Keys of a block, warps, pipeline stages and maximum of registers (0: the compiler's choice, which can spill)."""

    block_n: int
    num_warps: int
    num_stages: int
    max_registers: int = 0


def default_config(size: int, dtype: torch.dtype) -> DecodeAttentionConfig:
    """Return the pinned configuration for the larger one of key and value head size."""
    if dtype == torch.float32:
        return DecodeAttentionConfig(32 if size <= 64 else 16, 4, 1, 255)
    if size <= 128:
        return DecodeAttentionConfig(64, 4, 3, 255)
    return DecodeAttentionConfig(32 if size <= 256 else 16, 4, 2, 255)


def packed_heads(groups: int, dtype: torch.dtype) -> tuple[int, int]:
    """Return how the query heads of a key head become rows: (rows of a program, programs for them)."""
    most = 16 if dtype == torch.float32 else 32  # more would spill
    rows = max(power_of_2(min(groups, most)), 16)
    return rows, ceil_div(groups, rows)


@triton.jit
def _seen(range_, start_ptr, stop_ptr, offset_ptr, position, window, POSITIONS: tl.constexpr, WINDOW: tl.constexpr):
    """Return the keys of a range that the row sees, low:high with low <= high."""
    start = tl.load(start_ptr + range_)
    low, high = start, tl.load(stop_ptr + range_)
    if POSITIONS:
        before = start - tl.load(offset_ptr + range_)  # the key at position p is p + before
        high = tl.minimum(high, position + 1 + before)
        if WINDOW == 1:  # the last `window` positions
            low = tl.maximum(low, position + 1 - window + before)
        if WINDOW == 2:  # the positions of the row's chunk; none for a position below 0
            low = tl.maximum(low, tl.maximum(position, 0) // window * window + before)
    return low, tl.maximum(high, low)


@triton.jit(
    do_not_specialize=["num_splits", "window"],
    do_not_specialize_on_alignment=["row_ptr_ptr", "part_ptr", "start_ptr", "stop_ptr", "offset_ptr", "position_ptr"],
)
def decode_attention_kernel(
    query_ptr,  # [B, Hq, D]
    key_ptr,  # [Tk, Hk, D] of part 0
    other_key_ptr,  # [Tk, Hk, D] of part 1
    value_ptr,  # [Tk, Hk, Dv] of part 0
    other_value_ptr,  # [Tk, Hk, Dv] of part 1
    out_ptr,  # float32 [S, B, Hq, Dv]
    lse_ptr,  # float32 [S, B, Hq]
    row_ptr_ptr,  # int32 [B + 1]
    part_ptr,  # int32 [n]
    start_ptr,  # int32 [n]
    stop_ptr,  # int32 [n]
    offset_ptr,  # int32 [n] or None
    position_ptr,  # int32 [B] or None
    sink_ptr,  # [Hq] or None
    slope_ptr,  # [Hq] or None
    num_splits,
    heads_a_key,
    scale,
    scale_log2,
    softcap,
    window,
    stride_query_row,
    stride_query_head,
    stride_key_token,
    stride_key_head,
    stride_other_key_token,
    stride_other_key_head,
    stride_value_token,
    stride_value_head,
    stride_other_value_token,
    stride_other_value_head,
    D: tl.constexpr,
    DV: tl.constexpr,
    HEAD_CHUNKS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Run program (row, key head x chunk of its query heads, split of the row's keys)."""
    row = tl.program_id(0).to(tl.int64)
    key_head = (tl.program_id(1) // HEAD_CHUNKS).to(tl.int64)
    split = tl.program_id(2)
    POSITIONS: tl.constexpr = position_ptr is not None
    position = 0
    if POSITIONS:
        position = tl.load(position_ptr + row)
    first, last = tl.load(row_ptr_ptr + row), tl.load(row_ptr_ptr + row + 1)
    total = 0
    for range_ in range(first, last):
        low, high = _seen(range_, start_ptr, stop_ptr, offset_ptr, position, window, POSITIONS, WINDOW)
        total += high - low
    share = tl.cdiv(tl.cdiv(total, num_splits), BLOCK_N) * BLOCK_N
    begin = split * share
    end = tl.minimum(begin + share, total)

    o_m = (tl.program_id(1) % HEAD_CHUNKS) * BLOCK_M + tl.arange(0, BLOCK_M)  # [M], from the key head's first
    o_n = tl.arange(0, BLOCK_N)  # [N]
    o_d = tl.arange(0, BLOCK_D)  # [D]
    o_dv = tl.arange(0, BLOCK_DV)  # [Dv]
    m_m = o_m < heads_a_key  # [M]
    m_d = o_d < D  # [D]
    m_dv = o_dv < DV  # [Dv]
    o_head = key_head * heads_a_key + o_m  # [M]
    p_query = query_ptr + row * stride_query_row + o_head[:, None] * stride_query_head + o_d[None, :]
    b_q = tl.load(p_query, mask=m_m[:, None] & m_d[None, :], other=0.0)  # [M, D]
    if UPCAST:
        b_q = b_q.to(tl.float32)
    if slope_ptr is not None:
        b_slope = tl.load(slope_ptr + o_head, mask=m_m, other=0.0)  # [M]
        b_none = tl.zeros([BLOCK_M], tl.int32)  # [M]

    b_max_log2 = tl.full([BLOCK_M], float("-inf"), tl.float32)  # [M]
    b_sum = tl.zeros([BLOCK_M], tl.float32)  # [M]
    b_acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)  # [M, Dv]
    before = 0  # keys of the ranges so far
    for range_ in range(first, last):
        low, high = _seen(range_, start_ptr, stop_ptr, offset_ptr, position, window, POSITIONS, WINDOW)
        part = tl.load(part_ptr + range_)
        p_key = tl.where(part == 0, key_ptr, other_key_ptr)
        p_value = tl.where(part == 0, value_ptr, other_value_ptr)
        key_token = tl.where(part == 0, stride_key_token, stride_other_key_token)
        value_token = tl.where(part == 0, stride_value_token, stride_other_value_token)
        p_key += key_head * tl.where(part == 0, stride_key_head, stride_other_key_head)
        p_value += key_head * tl.where(part == 0, stride_value_head, stride_other_value_head)
        own_low = low + tl.maximum(begin - before, 0)
        own_high = tl.minimum(high, low + end - before)
        before += high - low
        for start in range(own_low, own_high, BLOCK_N):
            m_n = o_n < own_high - start  # [N]
            o_key = (start + o_n).to(tl.int64)  # [N]
            p_k = p_key + (o_key * key_token)[None, :] + o_d[:, None]
            p_v = p_value + (o_key * value_token)[:, None] + o_dv[None, :]
            b_k = tl.load(p_k, mask=m_n[None, :] & m_d[:, None], other=0.0)  # [D, N]
            b_v = tl.load(p_v, mask=m_n[:, None] & m_dv[None, :], other=0.0)  # [N, Dv]
            if UPCAST:
                b_k, b_v = b_k.to(tl.float32), b_v.to(tl.float32)
            b_s = capped(tl.dot(b_q, b_k, input_precision="ieee"), scale, softcap, SOFTCAP)  # [M, N]
            if slope_ptr is not None:
                b_place = tl.load(offset_ptr + range_) - tl.load(start_ptr + range_) + start + o_n - position  # [N]
                b_s = with_slopes(b_s, scale, b_slope, b_place, b_none, SOFTCAP)
            b_s = tl.where(m_n[None, :], b_s, float("-inf"))
            b_new_log2 = tl.maximum(b_max_log2, tl.max(b_s, 1) * scale_log2)  # [M]
            b_p = tl.exp2(b_s * scale_log2 - b_new_log2[:, None])  # [M, N]
            b_shrink = tl.exp2(b_max_log2 - b_new_log2)  # [M]
            b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
            b_acc *= b_shrink[:, None]
            b_high = b_p.to(b_v.dtype)  # [M, N]
            if b_v.dtype != tl.float32:
                b_acc = tl.dot((b_p - b_high.to(tl.float32)).to(b_v.dtype), b_v, b_acc)
            b_acc = tl.dot(b_high, b_v, b_acc, input_precision="ieee")  # [M, Dv]
            b_max_log2 = b_new_log2

    if sink_ptr is not None:
        b_sink = tl.load(sink_ptr + o_head, mask=m_m, other=float("-inf"))  # [M], nats
        b_acc, b_max_log2, b_sum = with_sink(b_acc, b_max_log2, b_sum, b_sink, split)

    b_out = b_acc / tl.where(b_sum == 0.0, 1.0, b_sum)[:, None]  # [M, Dv]
    o_state = (split * tl.num_programs(0).to(tl.int64) + row) * (heads_a_key * tl.num_programs(1) // HEAD_CHUNKS)
    tl.store(out_ptr + (o_state + o_head)[:, None] * DV + o_dv[None, :], b_out, mask=m_m[:, None] & m_dv[None, :])
    b_lse = (b_max_log2 + tl.log2(b_sum)) * 0.6931471805599453  # [M], nats; -inf if nothing was seen
    tl.store(lse_ptr + o_state + o_head, b_lse, mask=m_m)


def decode_attention_triton(
    query: Tensor,
    keys: list[Tensor],
    values: list[Tensor],
    tables: tuple[Tensor, ...],
    *,
    longest: int,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    positions: Tensor | None = None,
    config: DecodeAttentionConfig | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (out, lse) of a call with one or two parts of keys.

    Args:
        query, keys, values, scale, window, chunk, softcap, sinks, slopes, positions: of `decode_attention`.
        tables: row_ptr, part, start, stop and, if there are any, offsets of the ranges, on query's device.
        longest: at least the number of keys that any row sees.
        config, num_splits: replace the pinned configuration and the number of programs that share a row's keys.
    """
    if scale <= 0:  # the kernel takes maxima before it scales
        query, scale = query * (0.0 if scale == 0 else -1.0), abs(scale) or 1.0
    rows, heads, size = query.shape
    _, key_heads, value_size = values[0].shape
    config = config or default_config(max(size, value_size), query.dtype)
    if num_splits is None:
        _, chunks = packed_heads(heads // max(key_heads, 1), query.dtype)
        programs = max(rows * key_heads * chunks, 1)
        wanted = ceil_div(2 * processors(query.device), programs)
        num_splits = min(wanted, ceil_div(longest, _BLOCKS_PER_SPLIT * config.block_n), _MAX_SPLITS)
    return _run(
        _DecodeLaunch(
            query=_packed(query),
            keys=[_packed(key) for key in keys],
            values=[_packed(value) for value in values],
            row_ptr=tables[0],
            part=tables[1],
            start=tables[2],
            stop=tables[3],
            offset=tables[4] if len(tables) > 4 else None,
            positions=positions,
            scale=float(scale),
            window=chunk or window,
            chunked=chunk is not None,
            softcap=softcap,
            sinks=sinks,
            slopes=slopes,
            num_splits=max(num_splits, 1),
            config=list(config),
        )
    )


def _packed(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class _DecodeLaunch(NamedTuple):
    """Arguments of the op, of which `config` holds the fields of a `DecodeAttentionConfig`."""

    query: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    row_ptr: Tensor
    part: Tensor
    start: Tensor
    stop: Tensor
    offset: Tensor | None
    positions: Tensor | None
    scale: float
    window: int | None
    chunked: bool
    softcap: float | None
    sinks: Tensor | None
    slopes: Tensor | None
    num_splits: int
    config: list[int]


def _fake(call: _DecodeLaunch) -> tuple[Tensor, Tensor]:
    return empty_results(call.query, call.values)


@triton_op("decode_attention_triton", _DecodeLaunch, 2, _fake)
def _run(call: _DecodeLaunch) -> tuple[Tensor, Tensor]:
    query, key, value, num_splits = call.query, call.keys[0], call.values[0], call.num_splits
    other_key, other_value = call.keys[-1], call.values[-1]
    config = DecodeAttentionConfig._make(call.config)
    rows, heads, size = query.shape
    _, key_heads, value_size = value.shape
    groups = heads // max(key_heads, 1)
    block_m, head_chunks = packed_heads(groups, query.dtype)
    out, lse = empty_results(query, call.values)
    if rows * heads == 0:
        return out, lse
    states, states_lse = out, lse
    if num_splits > 1:
        states, states_lse = (torch.empty((num_splits, *t.shape), dtype=t.dtype, device=t.device) for t in (out, lse))
    in_nats = call.softcap is not None or call.slopes is not None
    operands = (query, key, other_key, value, other_value, states, states_lse)
    tables = (call.row_ptr, call.part, call.start, call.stop, call.offset, call.positions, call.sinks, call.slopes)
    scale_log2 = _LOG2_E if in_nats else call.scale * _LOG2_E
    numbers = (num_splits, groups, call.scale, scale_log2, call.softcap or 1.0, call.window or 0)
    steps = [step for tensor in (query, key, other_key, value, other_value) for step in tensor.stride()[:2]]
    # By position: names would take the host a few microseconds a launch.
    decode_attention_kernel[(rows, key_heads * head_chunks, num_splits)](
        *operands,
        *tables,
        *numbers,
        *steps,
        D=size,
        DV=value_size,
        HEAD_CHUNKS=head_chunks,
        WINDOW=0 if call.window is None else 2 if call.chunked else 1,
        SOFTCAP=call.softcap is not None,
        # The interpreter multiplies bfloat16 as raw bits, so there the kernel computes in float32.
        UPCAST=interpreting() and query.dtype == torch.bfloat16,
        BLOCK_M=block_m,
        BLOCK_N=config.block_n,
        BLOCK_D=max(power_of_2(size), 16),
        BLOCK_DV=max(power_of_2(value_size), 16),
        **compiler_options(config.num_warps, config.num_stages, config.max_registers),
    )
    if num_splits > 1:
        merge_stack_triton(states, states_lse, out, lse)
    return out, lse
