# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""tree_attention in Triton: online softmax over the key blocks that the schedule gives a tile of queries.

    out_i = sum_j exp(s_ij - lse_i) v_j,    lse_i = log sum_j exp(s_ij),    j <= anchor[i] < until[j]

One program takes a tile of consecutive query tokens and one key head. The query heads of that key head are packed
as rows (row r is token r // HEADS_PACKED, head r % HEADS_PACKED), so its keys are read once for all of them. The
tile's blocks come in two runs: those that every query sees whole, computed without a mask, then those with one.
Where there are few tiles (decoding), the runs are split over programs and the partial states merged afterwards.

The softmax is in base 2, scores in units of log 2: exp2(s * log2(e)) is one instruction, exp(s) two. Sums, maxima
and the accumulator are float32. No length is a constexpr or specialised on, so another tree compiles nothing.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from fastreader.ops.merge_state.triton import merge_stack_triton
from fastreader.ops.tree_attention.plan import AttentionPlan
from fastreader.ops.tree_attention.schedule import Schedule
from fastreader.ops.triton_support import interpreting, processors, target_of, triton_op, with_near_tiles

_LOG2_E = 1.0 / math.log(2.0)
_MAX_SPLITS = 64
_BLOCKS_A_SPLIT = 4  # key blocks that are worth a program of their own


class Config(NamedTuple):
    """Rows of queries (tokens x heads packed) and keys of a block, warps, pipeline stages, registers at most.

    `max_registers` is for the compiler, which for float32 aims at more warps than fit and spills a few bytes.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None


# The pinned configurations, for each compute capability and largest head size (96: all sizes between 64 and 128,
# padded to 128; 192 likewise). None spills or exceeds shared memory, with or without a window, a soft cap and lse:
# the compile report (docs/kernels.md) checks it.
_WIDE, _FLAT = Config(128, 64, 8, 2), Config(128, 32, 8, 2)
_DEEP = Config(64, 32, 8, 2)
_HALF = {
    80: {64: Config(128, 64, 8, 3), 96: _FLAT, 128: _FLAT, 192: _DEEP, 256: _DEEP},
    89: {64: Config(128, 64, 8, 3), 96: _FLAT, 128: _FLAT, 192: _DEEP, 256: _DEEP},
    90: {64: Config(128, 64, 8, 3), 96: _WIDE, 128: _WIDE, 192: _FLAT, 256: _FLAT},
    100: {64: Config(128, 64, 8, 3), 96: _WIDE, 128: _WIDE, 192: _FLAT, 256: _FLAT},
    120: {64: Config(128, 64, 8, 3), 96: _FLAT, 128: _FLAT, 192: _DEEP, 256: _DEEP},
}
_THIN, _THIN_DEEP = Config(32, 16, 8, 1), Config(16, 32, 8, 1, 168)
_SINGLE = {64: Config(64, 32, 8, 1, 168), 96: _THIN, 128: _THIN, 192: _THIN_DEEP, 256: _THIN_DEEP}
_FEW_ROWS = 16  # the fewest tl.dot takes
_HALF_FEW = {64: Config(16, 64, 4, 3), 96: Config(16, 64, 4, 2), 128: Config(16, 64, 4, 2)}
_HALF_FEW |= {192: Config(16, 64, 4, 2), 256: Config(16, 64, 4, 2)}


def default_config(target: int, size: int, dtype: torch.dtype, rows: int) -> Config:
    """The pinned configuration.

    Args:
        target: an entry of `triton_support.TARGETS`.
        size: the larger of key and value head size.
        dtype: of the inputs.
        rows: query tokens times query heads a key head; few of a half type take a configuration of their own.
    """
    bucket = 64 if size <= 64 else 96 if size < 128 else 128 if size == 128 else 192 if size < 256 else 256
    if dtype == torch.float32:
        return _SINGLE[bucket]
    return _HALF_FEW[bucket] if rows <= _FEW_ROWS else _HALF[target][bucket]


@triton.jit
def _scores(b_q, b_k, scale, softcap, SOFTCAP: tl.constexpr):
    """Scores in nats without their scale [M, N]; with a soft cap the scale and the cap are applied."""
    b_s = tl.dot(b_q, b_k, input_precision="ieee")  # [M, N]
    if SOFTCAP:
        # tanh by one exponential of a negative number: no overflow on either side.
        b_e = tl.exp2(tl.abs(b_s) * (-2.0 * 1.4426950408889634 * scale / softcap))  # [M, N]
        b_tanh = (1.0 - b_e) / (1.0 + b_e)
        b_s = softcap * tl.where(b_s < 0, -b_tanh, b_tanh)
    return b_s


@triton.jit
def _load_tile(ptr, start, stride_token, o_tile, m_tile, ALL: tl.constexpr):
    """The tile at offsets o_tile from token `start`, masked unless ALL of it is there.

    Only the tile's own address has 64 bits; the offsets inside fit 32, which saves registers.
    """
    p_tile = ptr + start.to(tl.int64) * stride_token + o_tile
    if ALL:
        return tl.load(p_tile)
    return tl.load(p_tile, mask=m_tile, other=0.0)


@triton.jit
def _online_softmax(b_s, b_v, b_acc, b_max_log2, b_sum, scale_log2, GUARD: tl.constexpr):
    """Fold the scores [M, N] and values [N, Dv] of one block into the running state of each row."""
    b_new_log2 = tl.maximum(b_max_log2, tl.max(b_s, 1) * scale_log2)  # [M]
    b_base_log2 = b_new_log2
    if GUARD:  # a row that has seen nothing yet: exp2(-inf - 0) is 0, exp2(-inf - -inf) would be NaN
        b_base_log2 = tl.where(b_new_log2 == float("-inf"), 0.0, b_new_log2)
    b_p = tl.exp2(b_s * scale_log2 - b_base_log2[:, None])  # [M, N]
    b_shrink = tl.exp2(b_max_log2 - b_base_log2)  # [M]
    b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
    b_acc = tl.dot(b_p.to(b_v.dtype), b_v, b_acc * b_shrink[:, None], input_precision="ieee")  # [M, Dv]
    return b_acc, b_new_log2, b_sum


@triton.jit(
    do_not_specialize=["tokens", "splits", "window"],
    do_not_specialize_on_alignment=["until_ptr", "anchor_ptr", "query_position_ptr", "key_position_ptr"],
)
def tree_attention_kernel(
    query_ptr,  # [Tq, Hq, D]
    key_ptr,  # [Tk, Hk, D]
    value_ptr,  # [Tk, Hk, Dv]
    out_ptr,  # [S, Tq, Hq, Dv]
    lse_ptr,  # [S, Tq, Hq] or None
    until_ptr,  # [Tk]
    anchor_ptr,  # [Tq]
    query_position_ptr,  # [Tq] or None
    key_position_ptr,  # [Tk] or None
    tile_ptr,  # int32 [tiles, 5]: first token, end token, first block, first masked block, end block
    block_start_ptr,  # int32 [blocks + 1]
    block_stop_ptr,  # int32 [blocks + 1]
    tokens,
    splits,
    heads_a_key,
    scale,
    scale_log2,
    softcap,
    window,
    stride_query_token,
    stride_query_head,
    stride_query_size,
    stride_key_token,
    stride_key_head,
    stride_key_size,
    stride_value_token,
    stride_value_head,
    stride_value_size,
    stride_out_token,
    stride_out_head,
    stride_lse_token,
    D: tl.constexpr,
    DV: tl.constexpr,
    HEADS_PACKED: tl.constexpr,
    HEAD_CHUNKS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Program (tile, key head x chunk of its query heads, split of the tile's blocks)."""
    tile = tl.program_id(0).to(tl.int64)
    key_head = (tl.program_id(1) // HEAD_CHUNKS).to(tl.int64)
    chunk = tl.program_id(1) % HEAD_CHUNKS
    split = tl.program_id(2)
    token_first = tl.load(tile_ptr + tile * 5)
    token_end = tl.load(tile_ptr + tile * 5 + 1)
    block_first = tl.load(tile_ptr + tile * 5 + 2)
    block_masked = tl.load(tile_ptr + tile * 5 + 3)
    block_end = tl.load(tile_ptr + tile * 5 + 4)
    share = tl.cdiv(block_end - block_first, splits)
    block_first = tl.minimum(block_first + split * share, block_end)
    block_end = tl.minimum(block_first + share, block_end)
    block_masked = tl.minimum(tl.maximum(block_masked, block_first), block_end)

    o_m = tl.arange(0, BLOCK_M)  # [M]
    o_n = tl.arange(0, BLOCK_N)  # [N]
    o_d = tl.arange(0, BLOCK_D)  # [D]
    o_dv = tl.arange(0, BLOCK_DV)  # [Dv]
    o_token = o_m // HEADS_PACKED  # [M], from the tile's first
    o_group = chunk * HEADS_PACKED + o_m % HEADS_PACKED  # [M], from the key head's first
    m_m = (o_token < token_end - token_first) & (o_group < heads_a_key)  # [M]
    m_d = o_d < D  # [D]
    m_dv = o_dv < DV  # [Dv]

    query_ptr += token_first.to(tl.int64) * stride_query_token + key_head * heads_a_key * stride_query_head
    o_query = (o_token * stride_query_token + o_group * stride_query_head)[:, None] + o_d[None, :] * stride_query_size
    b_q = tl.load(query_ptr + o_query, mask=m_m[:, None] & m_d[None, :], other=0.0)  # [M, D]
    b_anchor = tl.load(anchor_ptr + token_first + o_token, mask=m_m, other=-1).to(tl.int32)  # [M]
    if WINDOW:
        b_oldest = tl.load(query_position_ptr + token_first + o_token, mask=m_m, other=0) - window  # [M]
    if UPCAST:
        b_q = b_q.to(tl.float32)
    key_ptr += key_head * stride_key_head
    value_ptr += key_head * stride_value_head
    o_k = o_n[None, :] * stride_key_token + o_d[:, None] * stride_key_size  # [D, N]
    o_v = o_n[:, None] * stride_value_token + o_dv[None, :] * stride_value_size  # [N, Dv]

    b_max_log2 = tl.full([BLOCK_M], float("-inf"), tl.float32)  # [M]
    b_sum = tl.zeros([BLOCK_M], tl.float32)  # [M]
    b_acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)  # [M, Dv]

    # The start of the next block is fetched one iteration ahead of the loads whose addresses need it.
    next_start = tl.load(block_start_ptr + block_first)
    for block in range(block_first, block_masked):
        start = next_start
        next_start = tl.load(block_start_ptr + block + 1)
        b_k = _load_tile(key_ptr, start, stride_key_token, o_k, m_d[:, None], D == BLOCK_D)  # [D, N]
        b_v = _load_tile(value_ptr, start, stride_value_token, o_v, m_dv[None, :], DV == BLOCK_DV)  # [N, Dv]
        if UPCAST:
            b_k, b_v = b_k.to(tl.float32), b_v.to(tl.float32)
        b_s = _scores(b_q, b_k, scale, softcap, SOFTCAP)  # [M, N]
        b_acc, b_max_log2, b_sum = _online_softmax(b_s, b_v, b_acc, b_max_log2, b_sum, scale_log2, False)

    next_start = tl.load(block_start_ptr + block_masked)
    for block in range(block_masked, block_end):
        start = next_start
        next_start = tl.load(block_start_ptr + block + 1)
        m_n = o_n < tl.load(block_stop_ptr + block) - start  # [N]
        m_k = m_n[None, :] & m_d[:, None]  # [D, N]
        b_k = _load_tile(key_ptr, start, stride_key_token, o_k, m_k, False)  # [D, N]
        m_v = m_n[:, None] & m_dv[None, :]  # [N, Dv]
        b_v = _load_tile(value_ptr, start, stride_value_token, o_v, m_v, False)  # [N, Dv]
        o_key = start + o_n  # [N]
        b_until = tl.load(until_ptr + o_key, mask=m_n, other=0)  # [N]; a key past the block's end expires at 0
        m_mn = (o_key[None, :] <= b_anchor[:, None]) & (b_anchor[:, None] < b_until[None, :])  # [M, N]
        if WINDOW:
            b_key_position = tl.load(key_position_ptr + o_key, mask=m_n, other=0)  # [N]
            m_mn = m_mn & (b_key_position[None, :] > b_oldest[:, None])
        if UPCAST:
            b_k, b_v = b_k.to(tl.float32), b_v.to(tl.float32)
        b_s = tl.where(m_mn, _scores(b_q, b_k, scale, softcap, SOFTCAP), float("-inf"))  # [M, N]
        b_acc, b_max_log2, b_sum = _online_softmax(b_s, b_v, b_acc, b_max_log2, b_sum, scale_log2, True)

    m_empty = b_sum == 0.0  # [M]
    b_out = b_acc / tl.where(m_empty, 1.0, b_sum)[:, None]  # [M, Dv]
    row = split * tokens.to(tl.int64) + token_first  # of the parts, laid end to end
    out_ptr += row * stride_out_token + key_head * heads_a_key * stride_out_head
    o_out = (o_token * stride_out_token + o_group * stride_out_head)[:, None] + o_dv[None, :]  # [M, Dv]
    tl.store(out_ptr + o_out, b_out.to(out_ptr.dtype.element_ty), mask=m_m[:, None] & m_dv[None, :])
    if lse_ptr is not None:
        b_lse = (b_max_log2 + tl.log2(b_sum)) * 0.6931471805599453  # [M], nats; -inf where nothing was seen
        lse_ptr += row * stride_lse_token + key_head * heads_a_key
        tl.store(lse_ptr + o_token * stride_lse_token + o_group, b_lse, mask=m_m)


class DeviceSchedule(NamedTuple):
    """A schedule as the kernel reads it.

    Attributes:
        tiles: int32 [tiles, 5]: first token, end token, first block, first masked block, end block; the tiles
            with most blocks first, so that no long one starts last.
        block_start: int32 [blocks + 1], of each tile's blocks the unmasked first; one element of padding.
        block_stop: int32 [blocks + 1].
        longest: blocks of the longest tile.
    """

    tiles: Tensor
    block_start: Tensor
    block_stop: Tensor
    longest: int


_ON_DEVICE: WeakKeyDictionary[Schedule, dict[torch.device, DeviceSchedule]] = WeakKeyDictionary()


def device_schedule(schedule: Schedule, device: torch.device) -> DeviceSchedule:
    """The schedule's arrays on the device, kept as long as the schedule is: every layer uses them."""
    by_device = _ON_DEVICE.setdefault(schedule, {})
    if device not in by_device:
        by_device[device] = _upload(schedule, device)
    return by_device[device]


def _upload(schedule: Schedule, device: torch.device) -> DeviceSchedule:
    counts = np.diff(schedule.block_ptr)
    tile = np.repeat(np.arange(len(counts)), counts)
    whole = schedule.block_full & (schedule.block_stop - schedule.block_start == schedule.key_block)
    order = np.lexsort((~whole, tile))  # stable: ascending keys within each run
    first = schedule.block_ptr[:-1]
    masked = first + np.bincount(tile[whole], minlength=len(counts))
    tiles = np.stack([schedule.tile_start, schedule.tile_stop, first, masked, schedule.block_ptr[1:]], axis=1)
    tiles = tiles[np.argsort(-counts, kind="stable")].astype(np.int32)
    padded = [np.append(a[order], 0).astype(np.int32) for a in (schedule.block_start, schedule.block_stop)]
    longest = int(counts.max(initial=0))
    on_device = [torch.from_numpy(a).to(device) for a in (tiles, *padded)]
    return DeviceSchedule(on_device[0], on_device[1], on_device[2], longest)


def pack_heads(groups: int, block_m: int) -> tuple[int, int]:
    """How the query heads of a key head become rows: (heads packed in one tile, tiles a token stretch needs)."""
    chunks = -(-groups // block_m)
    return -(-groups // chunks), chunks


def tree_attention_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    until: Tensor,
    anchor: Tensor,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
    scale: float,
    window: int | None,
    softcap: float | None,
    plan: AttentionPlan,
    return_lse: bool,
    *,
    config: Config | None = None,
    splits: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Arguments as `tree_attention`; `config` and `splits` replace the pinned configuration and key-splitting.

    Returns (output [Tq, Hq, Dv] in the input dtype, lse float32 [Tq, Hq] or None).
    """
    tokens, heads, size = query.shape
    key_heads, value_size = key.shape[1], value.shape[2]
    device = query.device
    if scale <= 0:  # the kernel takes maxima before it scales
        query, scale = query * (0.0 if scale == 0 else -1.0), abs(scale) or 1.0
    groups = heads // max(key_heads, 1)
    if config is None:
        config = default_config(target_of(device), max(size, value_size), query.dtype, tokens * groups)
    packed, chunks = pack_heads(max(groups, 1), config.block_m)
    query = with_near_tiles(query, (config.block_m // packed, packed, size))
    key = with_near_tiles(key, (config.block_n, 1, size))
    value = with_near_tiles(value, (config.block_n, 1, value_size))
    schedule = plan.schedule(window, config.block_m // packed, config.block_n)
    tables = device_schedule(schedule, device)
    if splits is None:
        programs = max(len(tables.tiles) * key_heads * chunks, 1)
        splits = min(
            triton.cdiv(2 * processors(device), programs), triton.cdiv(tables.longest, _BLOCKS_A_SPLIT), _MAX_SPLITS
        )
    out, lse = torch.ops.fastreader.tree_attention_triton(
        query,
        key,
        value,
        until,
        anchor,
        query_positions if window is not None else None,
        key_positions if window is not None else None,
        tables.tiles,
        tables.block_start,
        tables.block_stop,
        float(scale),
        window,
        softcap,
        return_lse,
        max(splits, 1),
        [config.block_m, config.block_n, config.num_warps, config.num_stages],
        config.max_registers,
    )
    return out, lse if return_lse else None


@triton_op(
    "tree_attention_triton(Tensor query, Tensor key, Tensor value, Tensor until, Tensor anchor, "
    "Tensor? query_positions, Tensor? key_positions, Tensor tiles, Tensor block_start, Tensor block_stop, "
    "float scale, int? window, float? softcap, bool return_lse, int splits, int[] config, int? max_registers) "
    "-> (Tensor, Tensor)"
)
def _run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    until: Tensor,
    anchor: Tensor,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
    tiles: Tensor,
    block_start: Tensor,
    block_stop: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    return_lse: bool,
    splits: int,
    config: list[int],
    max_registers: int | None,
) -> tuple[Tensor, Tensor]:
    tokens, heads, size = query.shape
    key_heads, value_size = key.shape[1], value.shape[2]
    groups = heads // max(key_heads, 1)
    block_m, block_n, num_warps, num_stages = config
    packed, chunks = pack_heads(max(groups, 1), block_m)
    device = query.device
    # The interpreter mistakes bfloat16 (it multiplies raw bits, and truncates): there it computes in float32.
    upcast = interpreting() and query.dtype == torch.bfloat16
    out = torch.empty((tokens, heads, value_size), dtype=torch.float32 if upcast else query.dtype, device=device)
    lse = torch.empty((tokens if return_lse else 0, heads), dtype=torch.float32, device=device)
    if len(tiles) * key_heads * chunks == 0:
        return out.to(query.dtype), lse
    part, part_lse = out, lse if return_lse else None
    if splits > 1:
        part = torch.empty((splits, tokens, heads, value_size), dtype=torch.float32, device=device)
        part_lse = torch.empty((splits, tokens, heads), dtype=torch.float32, device=device)
    tree_attention_kernel[(len(tiles), key_heads * chunks, splits)](
        query,
        key,
        value,
        part,
        part_lse,
        until,
        anchor,
        query_positions,
        key_positions,
        tiles,
        block_start,
        block_stop,
        tokens,
        splits,
        groups,
        scale,
        scale * _LOG2_E if softcap is None else _LOG2_E,
        softcap or 1.0,
        window or 0,
        *query.stride(),
        *key.stride(),
        *value.stride(),
        heads * value_size,
        value_size,
        heads,
        D=size,
        DV=value_size,
        HEADS_PACKED=packed,
        HEAD_CHUNKS=chunks,
        WINDOW=window is not None,
        SOFTCAP=softcap is not None,
        UPCAST=upcast,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_D=max(triton.next_power_of_2(size), 16),
        BLOCK_DV=max(triton.next_power_of_2(value_size), 16),
        num_warps=num_warps,
        num_stages=num_stages,
        maxnreg=max_registers,
        enable_fp_fusion=True,
    )
    if splits > 1 and part_lse is not None:
        merge_stack_triton(part, part_lse, out, lse if return_lse else None)
    return out.to(query.dtype), lse


@_run.register_fake
def _fake(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return_lse = others[-4]
    tokens, heads, _ = query.shape
    out = query.new_empty((tokens, heads, value.shape[2]))
    return out, query.new_empty((tokens if return_lse else 0, heads), dtype=torch.float32)
