# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""linear_logprob in Triton: online log-sum-exp over tiles of the vocabulary, no R x V logits.

    z_rv = cap(scale * (hidden_r . weight_v + bias_v)),    logprob_r = z_r,target - log sum_v exp(z_rv)

One program takes BLOCK_R rows and one split of the vocabulary, whose logits it makes tile by tile in registers.
It keeps for each row the running maximum m, l = sum exp(z - m) and t = sum (z - m) exp(z - m); the entropy is
log l - t / l, free of the cancellation in log-sum-exp minus mean logit. The target's logit and those of a few
label tokens are picked from the tile that holds them. The states of the splits are joined at the end, a few values per
row. Everything is accumulated in float32. No length is a constexpr or specialised.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastreader.ops.linear_logprob.schema import LogprobStats
from fastreader.ops.triton_support import interpreting, processors, target_of, triton_op, with_near_tiles

_LOWEST = -1.0e30  # first running maximum: unlike -inf, the difference of two of them is a number
_MAX_SPLITS = 64


class Config(NamedTuple):
    """Rows, vocabulary and hidden columns of a block, warps, pipeline stages and maximum of registers.

    `max_registers` guides the compiler, which for float32 otherwise aims at more warps than fit and spills a few bytes.
    """

    block_r: int
    block_v: int
    block_e: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None


# The pinned configurations by compute capability, without and with a soft cap, whose tanh needs registers. The compile
# report (docs/compile-report.md) checks that none spills or exceeds shared memory, with or without other features.
_SQUARE, _LOW = Config(128, 128, 64, 8, 3), Config(64, 128, 64, 8, 3)
_HALF = {
    80: (_SQUARE, _LOW),
    89: (_SQUARE, _LOW),
    90: (_SQUARE, _SQUARE),
    100: (_SQUARE, _LOW),
    120: (Config(128, 128, 32, 8, 3), _LOW),
}
_FEW_ROWS = 16
_HALF_FEW = Config(16, 128, 64, 4, 3)
_SINGLE = Config(64, 64, 16, 8, 2, 255)


def default_config(target: int, dtype: torch.dtype, rows: int, capped: bool) -> Config:
    """Return the pinned configuration.

    Args:
        target: an entry of `triton_support.TARGETS`.
        dtype: type of the inputs.
        rows: number of rows; few rows of a half type have their own configuration.
        capped: whether there is a soft cap.
    """
    if dtype == torch.float32:
        return _SINGLE
    return _HALF_FEW if rows <= _FEW_ROWS else _HALF[target][capped]


@triton.jit(
    do_not_specialize=["rows", "vocabulary", "labels", "tiles_per_split"],
    do_not_specialize_on_alignment=["target_ptr", "label_ptr"],
)
def linear_logprob_kernel(
    hidden_ptr,  # [R, E]
    weight_ptr,  # [V, E]
    bias_ptr,  # [V] or None
    target_ptr,  # int64 [R]
    label_ptr,  # int64 [L] or None
    picked_ptr,  # float32 [R], the target's logit
    label_logit_ptr,  # float32 [R, L] or None
    max_ptr,  # float32 [S, R]
    sum_ptr,  # float32 [S, R]
    tilt_ptr,  # float32 [S, R] or None
    argmax_ptr,  # int32 [S, R] or None
    rows,
    vocabulary,
    width,
    labels,
    tiles_per_split,
    scale,
    softcap,
    stride_hidden_row,
    stride_hidden_width,
    stride_weight_token,
    stride_weight_width,
    SOFTCAP: tl.constexpr,
    STATS: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_E: tl.constexpr,
    LOWEST: tl.constexpr,
):
    """Run program (row tile, split of the vocabulary)."""
    split = tl.program_id(1)
    row_first = tl.program_id(0) * BLOCK_R
    o_r = tl.arange(0, BLOCK_R)  # [R]
    o_v = tl.arange(0, BLOCK_V)  # [V]
    o_e = tl.arange(0, BLOCK_E)  # [E]
    m_r = o_r < rows - row_first  # [R]
    b_target = tl.load(target_ptr + row_first + o_r, mask=m_r, other=-1).to(tl.int32)  # [R]
    # Only a tile's address has 64 bits; the offsets inside fit 32, which saves registers.
    hidden_ptr += row_first.to(tl.int64) * stride_hidden_row
    o_hidden = o_r[:, None] * stride_hidden_row + o_e[None, :] * stride_hidden_width  # [R, E]
    o_weight = o_v[None, :] * stride_weight_token + o_e[:, None] * stride_weight_width  # [E, V]

    b_max = tl.full([BLOCK_R], LOWEST, tl.float32)  # [R]
    b_sum = tl.zeros([BLOCK_R], tl.float32)  # [R]
    b_tilt = tl.zeros([BLOCK_R], tl.float32)  # [R]
    b_argmax = tl.zeros([BLOCK_R], tl.int32)  # [R]
    b_picked = tl.zeros([BLOCK_R], tl.float32)  # [R]

    first = split * tiles_per_split * BLOCK_V
    end = tl.minimum(first + tiles_per_split * BLOCK_V, vocabulary)
    for low in range(first, end, BLOCK_V):
        m_v = o_v < vocabulary - low  # [V]
        tile_ptr = weight_ptr + tl.cast(low, tl.int64) * stride_weight_token
        b_z = tl.zeros([BLOCK_R, BLOCK_V], tl.float32)  # [R, V]
        for column in range(0, width, BLOCK_E):
            m_e = o_e < width - column  # [E]
            p_hidden = hidden_ptr + tl.cast(column, tl.int64) * stride_hidden_width + o_hidden  # [R, E]
            p_weight = tile_ptr + tl.cast(column, tl.int64) * stride_weight_width + o_weight  # [E, V]
            b_h = tl.load(p_hidden, mask=m_r[:, None] & m_e[None, :], other=0.0)  # [R, E]
            b_w = tl.load(p_weight, mask=m_e[:, None] & m_v[None, :], other=0.0)  # [E, V]
            if UPCAST:
                b_h, b_w = b_h.to(tl.float32), b_w.to(tl.float32)
            b_z = tl.dot(b_h, b_w, b_z, input_precision="ieee")

        if bias_ptr is not None:
            b_z += tl.load(bias_ptr + low + o_v, mask=m_v, other=0.0).to(tl.float32)[None, :]
        b_z *= scale
        if SOFTCAP:
            # tanh by one exponential of a negative number: no overflow on either side.
            b_e = tl.exp(-2.0 * tl.abs(b_z) / softcap)
            b_tanh = (1.0 - b_e) / (1.0 + b_e)
            b_z = softcap * tl.where(b_z < 0, -b_tanh, b_tanh)

        m_target = o_v[None, :] == (b_target - low)[:, None]  # [R, V]
        b_picked += tl.sum(tl.where(m_target, b_z, 0.0), 1)
        if label_ptr is not None:
            for i in range(labels):
                label = tl.load(label_ptr + i)
                if (label >= low) & (label < low + BLOCK_V):
                    b_label = tl.sum(tl.where((o_v == label - low)[None, :], b_z, 0.0), 1)  # [R]
                    tl.store(label_logit_ptr + (row_first + o_r).to(tl.int64) * labels + i, b_label, mask=m_r)

        b_z = tl.where(m_v[None, :], b_z, float("-inf"))
        b_top = tl.max(b_z, 1)  # [R]
        if STATS:
            b_lowest = tl.min(tl.where(b_z == b_top[:, None], o_v[None, :], BLOCK_V), 1)  # [R], lowest of a tie
            b_argmax = tl.where(b_top > b_max, low + b_lowest, b_argmax)
        b_new = tl.maximum(b_max, b_top)  # [R]
        b_shrink = tl.exp(b_max - b_new)  # [R]
        b_gap = b_z - b_new[:, None]  # [R, V]
        b_p = tl.exp(b_gap)  # [R, V]
        if STATS:
            # Rebase t to the new maximum; where exp is 0 the gap may be -inf.
            b_tilt = b_shrink * (b_tilt + b_sum * (b_max - b_new))
            b_tilt += tl.sum(tl.where(b_p > 0.0, b_p * b_gap, 0.0), 1)
        b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
        b_max = b_new

    m_here = (b_target >= first) & (b_target < end)  # [R]; other splits have the other targets
    tl.store(picked_ptr + row_first + o_r, b_picked, mask=m_r & m_here)
    o_part = split * rows.to(tl.int64) + row_first + o_r  # [R], in the parts laid end to end
    tl.store(max_ptr + o_part, b_max, mask=m_r)
    tl.store(sum_ptr + o_part, b_sum, mask=m_r)
    if STATS:
        tl.store(tilt_ptr + o_part, b_tilt, mask=m_r)
        tl.store(argmax_ptr + o_part, b_argmax, mask=m_r)


def _join(peak: Tensor, total: Tensor, tilt: Tensor, argmax: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Join the states of the splits, each [S, R] or empty: (log-sum-exp, entropy, arg-max), each [R] or empty."""
    top = peak.amax(0)
    gap = peak - top
    weight = torch.exp(gap)
    mass = (weight * total).sum(0)
    logsumexp = top + torch.log(mass)
    if len(tilt) == 0:
        return logsumexp, tilt.new_empty(0), argmax.new_empty(0)
    entropy = torch.log(mass) - (weight * (tilt + total * gap)).sum(0) / mass
    lowest = torch.where(peak == top, argmax, torch.iinfo(argmax.dtype).max).amin(0)
    return logsumexp, entropy, lowest.to(torch.int64)


def linear_logprob_triton(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    softcap: float | None,
    scale: float,
    labels: Tensor | None = None,
    *,
    stats: bool = True,
    config: Config | None = None,
    num_splits: int | None = None,
) -> LogprobStats:
    """Run the kernel on the arguments of `linear_logprob_stats`; without `stats`, entropy and arg-max are empty.

    `config` and `num_splits` replace the pinned configuration and the number of splits of the vocabulary.
    """
    rows = hidden.shape[0]
    vocabulary, device = weight.shape[0], hidden.device
    config = config or default_config(target_of(device), hidden.dtype, rows, softcap is not None)
    hidden = with_near_tiles(hidden, (config.block_r, config.block_e))
    weight = with_near_tiles(weight, (config.block_v, config.block_e))
    row_tiles = triton.cdiv(rows, config.block_r)
    tiles = triton.cdiv(vocabulary, config.block_v)
    if num_splits is None:
        num_splits = min(triton.cdiv(4 * processors(device), max(row_tiles, 1)), _MAX_SPLITS)
    tiles_per_split = triton.cdiv(tiles, min(num_splits, tiles))
    num_splits = triton.cdiv(tiles, tiles_per_split)  # so that no split is empty

    picked, label_logits, peak, total, tilt, argmax = torch.ops.fastreader.linear_logprob_triton(
        *(hidden, weight, target.contiguous()),
        *(None if tensor is None else tensor.contiguous() for tensor in (bias, labels)),
        *(float(scale), softcap, stats, num_splits, tiles_per_split),
        [config.block_r, config.block_v, config.block_e, config.num_warps, config.num_stages],
        config.max_registers,
    )
    logsumexp, entropy, best = _join(peak, total, tilt, argmax)
    labelled = None if labels is None else label_logits - logsumexp[:, None]
    return LogprobStats(picked - logsumexp, logsumexp, entropy, best, labelled)


def _states(hidden: Tensor, labels: Tensor | None, num_splits: int, stats: bool) -> tuple[Tensor, ...]:
    """Return unset results of the kernel; those not requested are empty."""
    rows = hidden.shape[0]
    kept = num_splits if stats else 0

    def unset(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=hidden.device)

    label_logits = unset(rows, 0 if labels is None else labels.shape[0])
    return (
        unset(rows),
        label_logits,
        unset(num_splits, rows),
        unset(num_splits, rows),
        unset(kept, rows),
        unset(kept, rows, dtype=torch.int32),
    )


def _fake(hidden: Tensor, weight: Tensor, target: Tensor, bias: Any, labels: Any, *others: Any) -> tuple[Tensor, ...]:
    stats, num_splits = others[2:4]
    return _states(hidden, labels, num_splits, stats)


@triton_op(
    "linear_logprob_triton(Tensor hidden, Tensor weight, Tensor target, Tensor? bias, Tensor? labels, float scale, "
    "float? softcap, bool stats, int num_splits, int tiles_per_split, int[] config, int? max_registers) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _fake,
)
def _run(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    labels: Tensor | None,
    scale: float,
    softcap: float | None,
    stats: bool,
    num_splits: int,
    tiles_per_split: int,
    config: list[int],
    max_registers: int | None,
) -> tuple[Tensor, ...]:
    """Return the states of the splits: logits of targets [R] and labels [R, L], then maxima to arg-maxima [S, R]."""
    rows, width = hidden.shape
    block_r, block_v, block_e, num_warps, num_stages = config
    states = _states(hidden, labels, num_splits, stats)
    picked, label_logits, peak, total, tilt, argmax = states
    # A bfloat16 weight with float32 states is exact in float32. The interpreter cannot multiply bfloat16 at all.
    upcast = weight.dtype != hidden.dtype or (interpreting() and hidden.dtype == torch.bfloat16)
    if rows:
        linear_logprob_kernel[(triton.cdiv(rows, block_r), num_splits)](
            *(hidden, weight, bias, target, labels, picked, label_logits if labels is not None else None),
            *((peak, total, tilt, argmax) if stats else (peak, total, None, None)),
            *(rows, weight.shape[0], width, 0 if labels is None else len(labels), tiles_per_split),
            *(scale, softcap or 1.0),
            *hidden.stride(),
            *weight.stride(),
            SOFTCAP=softcap is not None,
            STATS=stats,
            UPCAST=upcast,
            BLOCK_R=block_r,
            BLOCK_V=block_v,
            BLOCK_E=block_e,
            LOWEST=_LOWEST,
            num_warps=num_warps,
            num_stages=num_stages,
            maxnreg=max_registers,
            enable_fp_fusion=True,
        )
    return states
