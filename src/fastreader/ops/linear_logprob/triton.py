# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""linear_logprob in Triton: online log-sum-exp over tiles of the vocabulary, no R x V logits.

    z_rv = cap(scale * (hidden_r . weight_v + bias_v)),    logprob_r = z_r,target - log sum_v exp(z_rv)

One program takes BLOCK_R rows and one split of the vocabulary, whose logits it makes tile by tile in registers.
It keeps for each row the running maximum m, l = sum exp(z - m) and t = sum (z - m) exp(z - m); the entropy is
log l - t / l, free of the cancellation in log-sum-exp minus mean logit. The logits of the target and of a few
label tokens are picked from the tile that holds them. A second kernel joins the states of the splits, a few values
per row. Everything is accumulated in float32. No length is a constexpr or specialised.

Programs that run at the same time share what they read: a group of row tiles takes a split of the vocabulary before
the next split begins. A few rows are the second operand of the product, whose first fills the matrix unit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from fastreader.ops.attention_scores import capped
from fastreader.ops.linear_logprob.schema import LogprobStats
from fastreader.ops.triton_support import (
    ceil_div,
    compiler_options,
    interpreting,
    processors,
    target_of,
    triton_op,
    with_near_tiles,
)

_LOG2_E = 1.0 / math.log(2.0)
_LOWEST = -1.0e30  # first running maximum: unlike -inf, the difference of two of them is a number
_GROUP = 16  # row tiles that share a split of the vocabulary: 2,048 rows, whose states stay in the second cache
_SPLITS_A_PROCESSOR = 4
_TMA_TARGETS = (90, 100)  # on sm_120 Triton 3.6 puts a few bytes of it on the stack
_JOIN_ROWS, _JOIN_SPLITS = 16, 32


class LinearLogprobConfig(NamedTuple):
    """Rows, vocabulary and hidden columns of a block, warps, pipeline stages and maximum of registers.

    `max_registers` guides the compiler, which for float32 otherwise aims at more warps than fit and spills a few bytes;
    0 leaves it free. With `swapped`, the rows are the second operand of the product.
    """

    block_r: int
    block_v: int
    block_e: int
    num_warps: int
    num_stages: int
    max_registers: int = 0
    swapped: bool = False


# The pinned configurations by compute capability, without and with a soft cap, whose tanh needs registers, and with
# entropies, whose term does. `make compile-report` checks that none spills or exceeds shared memory, with or
# without other features.
_SQUARE, _LOW = LinearLogprobConfig(128, 128, 64, 8, 3), LinearLogprobConfig(64, 128, 64, 8, 3)
_SHALLOW = LinearLogprobConfig(128, 128, 32, 8, 3)
_LOW_100 = _LOW._replace(max_registers=200)  # left to itself, ptxas takes 128 and some stack
_HALF = {80: (_SQUARE, _LOW), 89: (_SQUARE, _LOW), 90: (_SQUARE, _SQUARE), 100: (_SQUARE, _LOW_100)}
_HALF[120] = (_SHALLOW, _LOW)
# Twice the logits for each row that is read, where the width leaves time to load them.
_WIDE = {90: LinearLogprobConfig(128, 256, 64, 8, 4)}
_WIDE_FROM = 2048
_FEW_ROWS = (16, 64)
_HALF_FEW = {rows: LinearLogprobConfig(rows, 128, 64, 4, 4, swapped=True) for rows in _FEW_ROWS}
_SMALL_SHARED = (89, 120)  # targets with 99 KiB a program
_SINGLE = LinearLogprobConfig(64, 64, 16, 8, 2, 255)


def default_config(
    target: int,
    dtype: torch.dtype,
    rows: int,
    *,
    capped: bool,
    width: int = 0,
    entropy: bool = False,
    terms: int = 1,
) -> LinearLogprobConfig:
    """Return the pinned configuration.

    Args:
        target: an entry of `triton_support.TARGETS`.
        dtype: type of the inputs.
        rows: number of rows; few rows of a half type have their own configuration.
        capped: whether there is a soft cap.
        width: hidden size; 0 without the tensor memory accelerator.
        entropy: whether entropies are asked for.
        terms: number of terms of the hidden states.
    """
    if dtype == torch.float32:
        return _SINGLE
    for few in _FEW_ROWS:
        if rows <= few:
            spills = target == 100 or (capped or entropy if target == 90 else terms > 1)
            if few == 64 and spills:  # a swapped tile of 64 rows does
                return _LOW_100 if target == 100 else _LOW
            config = _HALF_FEW[few]
            return config._replace(num_stages=3) if target in _SMALL_SHARED else config
    if width >= _WIDE_FROM and target in _WIDE and not capped and not entropy:
        return _WIDE[target]._replace(num_stages=4 if terms == 1 else 3)
    return _HALF[target][capped]


@triton.jit
def _along(b_values, SWAPPED: tl.constexpr):
    """Return values of the vocabulary along its axis of a tile of logits."""
    return b_values[:, None] if SWAPPED else b_values[None, :]


@triton.jit
def _across(b_values, SWAPPED: tl.constexpr):
    """Return values of rows along their axis of a tile of logits."""
    return b_values[None, :] if SWAPPED else b_values[:, None]


@triton.jit(
    do_not_specialize=["rows", "vocabulary", "labels", "tiles_per_split", "splits", "group"],
    do_not_specialize_on_alignment=["target_ptr", "label_ptr", "max_ptr", "sum_ptr", "tilt_ptr", "argmax_ptr"],
)
def linear_logprob_kernel(
    hidden_ptr,  # [R, E]
    low_ptr,  # [R, E], what rounding took from the hidden states, contiguous; or None
    weight_ptr,  # [V, E]
    hidden_desc,  # the same three for the tensor memory accelerator, or None
    low_desc,
    weight_desc,
    bias_ptr,  # [V] or None
    target_ptr,  # int64 [R]
    label_ptr,  # int64 [L] or None
    picked_ptr,  # float32 [R], the target's logit
    label_logit_ptr,  # float32 [R, L] or None
    max_ptr,  # float32 [S, R], of logits before `scale_log2`
    sum_ptr,  # float32 [S, R]
    tilt_ptr,  # float32 [S, R] or None, in units of log 2
    argmax_ptr,  # int32 [S, R] or None
    rows,
    vocabulary,
    width,
    labels,
    tiles_per_split,
    splits,
    group,
    scale,
    scale_log2,
    softcap,
    stride_hidden_row,
    stride_hidden_width,
    stride_weight_token,
    stride_weight_width,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    SWAPPED: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_E: tl.constexpr,
    LOWEST: tl.constexpr,
):
    """Run program (group of row tiles, split of the vocabulary, row tile of the group), the last one fastest."""
    program = tl.program_id(0)
    row_first = (program // (splits * group) * group + program % group) * BLOCK_R
    split = program // group % splits
    if row_first >= rows:
        return
    o_r = tl.arange(0, BLOCK_R)  # [R]
    o_v = tl.arange(0, BLOCK_V)  # [V]
    o_e = tl.arange(0, BLOCK_E)  # [E]
    m_r = o_r < rows - row_first  # [R]
    b_target = tl.load(target_ptr + row_first + o_r, mask=m_r, other=-1).to(tl.int32)  # [R]
    # Only a tile's address has 64 bits; the offsets inside fit 32, which saves registers. Rows behind the last one
    # read the last one again, which needs no mask; so do tokens behind the vocabulary.
    hidden_ptr += row_first.to(tl.int64) * stride_hidden_row
    if low_ptr is not None:
        low_ptr += row_first.to(tl.int64) * stride_hidden_row
    o_row = tl.minimum(o_r, rows - row_first - 1)  # [R]

    b_max = tl.full([BLOCK_R], LOWEST, tl.float32)  # [R]
    b_sum = tl.zeros([BLOCK_R], tl.float32)  # [R]
    b_tilt = tl.zeros([BLOCK_R], tl.float32)  # [R]
    b_argmax = tl.zeros([BLOCK_R], tl.int32)  # [R]
    b_picked = tl.zeros([BLOCK_R], tl.float32)  # [R]
    AXIS: tl.constexpr = 0 if SWAPPED else 1  # of the vocabulary

    first = split * tiles_per_split * BLOCK_V
    end = tl.minimum(first + tiles_per_split * BLOCK_V, vocabulary)
    for low in range(first, end, BLOCK_V):
        tile_ptr = weight_ptr + tl.cast(low, tl.int64) * stride_weight_token
        o_token = tl.minimum(o_v, vocabulary - low - 1)  # [V]
        b_z = tl.zeros([BLOCK_V, BLOCK_R] if SWAPPED else [BLOCK_R, BLOCK_V], tl.float32)
        for column in range(0, width, BLOCK_E):
            if weight_desc is not None:
                b_h = hidden_desc.load([row_first, column])  # [R, E]
                b_w = weight_desc.load([low, column])  # [V, E]
                if low_ptr is not None:
                    b_low = low_desc.load([row_first, column])  # [R, E]
            else:
                o_column = column + o_e  # [E]
                o_hidden = o_row[:, None] * stride_hidden_row + o_column[None, :] * stride_hidden_width
                p_weight = tile_ptr + o_token[:, None] * stride_weight_token + o_column[None, :] * stride_weight_width
                m_e = (o_column < width)[None, :] if not EVEN else None
                b_h = tl.load(hidden_ptr + o_hidden, mask=m_e, other=None if EVEN else 0.0)
                if low_ptr is not None:
                    b_low = tl.load(low_ptr + o_hidden, mask=m_e, other=None if EVEN else 0.0)
                b_w = tl.load(p_weight, mask=m_e, other=None if EVEN else 0.0)
            if UPCAST:
                b_h, b_w = b_h.to(tl.float32), b_w.to(tl.float32)
            if low_ptr is not None:
                b_low = b_low.to(b_w.dtype)
                if SWAPPED:
                    b_z = tl.dot(b_w, b_low.T, b_z, input_precision="ieee")
                else:
                    b_z = tl.dot(b_low, b_w.T, b_z, input_precision="ieee")
            if SWAPPED:
                b_z = tl.dot(b_w, b_h.T, b_z, input_precision="ieee")  # [V, R]
            else:
                b_z = tl.dot(b_h, b_w.T, b_z, input_precision="ieee")  # [R, V]

        if bias_ptr is not None:
            b_z += _along(tl.load(bias_ptr + low + o_token).to(tl.float32), SWAPPED)
        b_z = capped(b_z, scale, softcap, SOFTCAP)

        m_here = (b_target >= low) & (b_target < low + BLOCK_V)  # [R]
        if tl.max(m_here.to(tl.int32), 0) > 0:
            m_target = _along(o_v, SWAPPED) == _across(b_target - low, SWAPPED)
            b_picked += tl.sum(tl.where(m_target, b_z, 0.0), AXIS)
        if label_ptr is not None:
            for i in range(labels):
                label = tl.load(label_ptr + i)
                if (label >= low) & (label < low + BLOCK_V):
                    b_label = tl.sum(tl.where(_along(o_v == label - low, SWAPPED), b_z, 0.0), AXIS)  # [R]
                    tl.store(label_logit_ptr + (row_first + o_r).to(tl.int64) * labels + i, b_label, mask=m_r)

        if low + BLOCK_V > vocabulary:
            b_z = tl.where(_along(o_v < vocabulary - low, SWAPPED), b_z, float("-inf"))
        b_top = tl.max(b_z, AXIS)  # [R]
        if argmax_ptr is not None:
            m_top = b_z == _across(b_top, SWAPPED)
            b_lowest = tl.min(tl.where(m_top, _along(o_v, SWAPPED), BLOCK_V), AXIS)  # [R], lowest of a tie
            b_argmax = tl.where(b_top > b_max, low + b_lowest, b_argmax)
        b_new = tl.maximum(b_max, b_top)  # [R]
        b_shift = (b_max - b_new) * scale_log2  # [R]
        b_shrink = tl.exp2(b_shift)  # [R]
        b_gap = b_z * scale_log2 - _across(b_new * scale_log2, SWAPPED)
        b_p = tl.exp2(b_gap)
        if tilt_ptr is not None:
            # Rebase t to the new maximum; where exp is 0 the gap may be -inf.
            b_tilt = b_shrink * (b_tilt + b_sum * b_shift) + tl.sum(tl.where(b_p > 0.0, b_p * b_gap, 0.0), AXIS)
        b_sum = b_sum * b_shrink + tl.sum(b_p, AXIS)
        b_max = b_new

    m_split = (b_target >= first) & (b_target < end)  # [R]; other splits have the other targets
    tl.store(picked_ptr + row_first + o_r, b_picked, mask=m_r & m_split)
    o_part = split * rows.to(tl.int64) + row_first + o_r  # [R], in the parts laid end to end
    tl.store(max_ptr + o_part, b_max, mask=m_r)
    tl.store(sum_ptr + o_part, b_sum, mask=m_r)
    if tilt_ptr is not None:
        tl.store(tilt_ptr + o_part, b_tilt, mask=m_r)
    if argmax_ptr is not None:
        tl.store(argmax_ptr + o_part, b_argmax, mask=m_r)


@triton.jit(
    do_not_specialize=["rows", "splits", "labels"],
    do_not_specialize_on_alignment=["max_ptr", "sum_ptr", "tilt_ptr", "argmax_ptr"],
)
def join_kernel(
    picked_ptr,  # float32 [R], overwritten with log-probabilities
    label_logit_ptr,  # float32 [R, L] or None, overwritten likewise
    max_ptr,  # float32 [S, R]
    sum_ptr,  # float32 [S, R]
    tilt_ptr,  # float32 [S, R] or None
    argmax_ptr,  # int32 [S, R] or None
    logsumexp_ptr,  # float32 [R]
    entropy_ptr,  # float32 [R] or None
    best_ptr,  # int64 [R] or None
    rows,
    splits,
    labels,
    scale,
    scale_log2,
    BLOCK_R: tl.constexpr,
    BLOCK_S: tl.constexpr,
    LOWEST: tl.constexpr,
):
    """Join the states of the splits of BLOCK_R rows."""
    o_r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)  # [R]
    o_s = tl.arange(0, BLOCK_S)  # [S]
    m_r = o_r < rows  # [R]
    b_max = tl.full([BLOCK_R], LOWEST, tl.float32)  # [R]
    b_sum = tl.zeros([BLOCK_R], tl.float32)  # [R]
    b_tilt = tl.zeros([BLOCK_R], tl.float32)  # [R]
    b_best = tl.zeros([BLOCK_R], tl.int32)  # [R]
    for low in range(0, splits, BLOCK_S):
        m_sr = (low + o_s < splits)[:, None] & m_r[None, :]  # [S, R]
        o_sr = (low + o_s)[:, None] * rows.to(tl.int64) + o_r[None, :]  # [S, R]
        b_peak = tl.load(max_ptr + o_sr, mask=m_sr, other=LOWEST)  # [S, R]
        b_total = tl.load(sum_ptr + o_sr, mask=m_sr, other=0.0)  # [S, R]
        b_top = tl.max(b_peak, 0)  # [R]
        b_new = tl.maximum(b_max, b_top)  # [R]
        b_shift = (b_max - b_new) * scale_log2  # [R]
        b_shrink = tl.exp2(b_shift)  # [R]
        b_gap = (b_peak - b_new[None, :]) * scale_log2  # [S, R]
        b_weight = tl.exp2(b_gap)  # [S, R]
        if tilt_ptr is not None:
            b_part = tl.load(tilt_ptr + o_sr, mask=m_sr, other=0.0)  # [S, R]
            b_tilt = b_shrink * (b_tilt + b_sum * b_shift) + tl.sum(b_weight * (b_part + b_total * b_gap), 0)
        if argmax_ptr is not None:
            b_token = tl.load(argmax_ptr + o_sr, mask=m_sr, other=2147483647)  # [S, R]
            b_lowest = tl.min(tl.where(b_peak == b_top[None, :], b_token, 2147483647), 0)  # [R]
            b_best = tl.where(b_top > b_max, b_lowest, b_best)
        b_sum = b_sum * b_shrink + tl.sum(b_weight * b_total, 0)
        b_max = b_new
    b_log2 = tl.log2(b_sum)  # [R]
    b_logsumexp = b_max * scale + b_log2 * 0.6931471805599453  # [R]
    tl.store(logsumexp_ptr + o_r, b_logsumexp, mask=m_r)
    b_picked = tl.load(picked_ptr + o_r, mask=m_r, other=0.0)  # [R]
    tl.store(picked_ptr + o_r, b_picked * scale - b_logsumexp, mask=m_r)
    if entropy_ptr is not None:
        tl.store(entropy_ptr + o_r, (b_log2 - b_tilt / b_sum) * 0.6931471805599453, mask=m_r)
    if best_ptr is not None:
        tl.store(best_ptr + o_r, b_best.to(tl.int64), mask=m_r)
    if label_logit_ptr is not None:
        for i in range(labels):
            p_label = label_logit_ptr + o_r * labels + i  # [R]
            tl.store(p_label, tl.load(p_label, mask=m_r, other=0.0) * scale - b_logsumexp, mask=m_r)


def linear_logprob_triton(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    scale: float = 1.0,
    labels: Tensor | None = None,
    entropy: bool = True,
    argmax: bool = True,
    split: bool = False,
    config: LinearLogprobConfig | None = None,
    num_splits: int | None = None,
) -> LogprobStats:
    """Run the kernels on the arguments of `linear_logprob_stats`.

    With `split`, float32 states are the sum of two bfloat16 terms, and the weight is bfloat16. `config` and
    `num_splits` replace the pinned configuration and the number of splits of the vocabulary.
    """
    rows, width = hidden.shape
    vocabulary, device = weight.shape[0], hidden.device
    if scale <= 0:  # the kernel takes maxima before it scales
        hidden, bias = hidden * (0.0 if scale == 0 else -1.0), None if bias is None else bias * (scale and -1.0)
        scale = abs(scale) or 1.0
    low = None
    if split:
        exact, hidden = hidden.contiguous(), hidden.bfloat16().contiguous()
        low = (exact - hidden).bfloat16()
    if config is None:
        config = default_config(
            target_of(device),
            hidden.dtype,
            rows,
            capped=softcap is not None,
            width=width if _describable(hidden) and _describable(weight) else 0,  # by pointers it would spill
            entropy=entropy,
            terms=1 + split,
        )
    row_tiles = max(ceil_div(rows, config.block_r), 1)
    tiles = ceil_div(vocabulary, config.block_v)
    if num_splits is None:
        num_splits = ceil_div(_SPLITS_A_PROCESSOR * processors(device), row_tiles)
    tiles_per_split = ceil_div(tiles, min(num_splits, tiles))
    logprob, label_logprob, logsumexp, spread, best = _run(
        _LogprobLaunch(
            hidden=with_near_tiles(hidden, (config.block_r, config.block_e)),
            low=low,
            weight=with_near_tiles(weight, (config.block_v, config.block_e)),
            target=target.contiguous(),
            bias=None if bias is None else bias.contiguous(),
            labels=None if labels is None else labels.contiguous(),
            scale=float(scale),
            softcap=softcap,
            entropy=entropy,
            argmax=argmax,
            num_splits=ceil_div(tiles, tiles_per_split),  # so that no split is empty
            tiles_per_split=tiles_per_split,
            config=list(config),
        )
    )
    return LogprobStats(logprob, logsumexp, spread, best, None if labels is None else label_logprob)


class _LogprobLaunch(NamedTuple):
    """Arguments of the op, of which `config` holds the fields of a `LinearLogprobConfig`."""

    hidden: Tensor
    low: Tensor | None
    weight: Tensor
    target: Tensor
    bias: Tensor | None
    labels: Tensor | None
    scale: float
    softcap: float | None
    entropy: bool
    argmax: bool
    num_splits: int
    tiles_per_split: int
    config: list[int]


def _results(call: _LogprobLaunch) -> tuple[Tensor, ...]:
    """Return unset log-probabilities of targets and labels, log-sum-exps, entropies and arg-maxima."""
    rows, labels, device = call.hidden.shape[0], call.labels, call.hidden.device
    shapes = ((rows,), (rows, 0 if labels is None else labels.shape[0]), (rows,), (rows if call.entropy else 0,))
    best = torch.empty(rows if call.argmax else 0, dtype=torch.int64, device=device)
    return *(torch.empty(shape, dtype=torch.float32, device=device) for shape in shapes), best


def _describable(tensor: Tensor) -> bool:
    """Return whether the tensor memory accelerator takes a tensor: rows of half types on multiples of 16 bytes."""
    rows_apart = tensor.stride(1) == 1 and tensor.stride(0) * tensor.element_size() % 16 == 0
    return rows_apart and tensor.element_size() == 2 and tensor.data_ptr() % 16 == 0


@triton_op("linear_logprob_triton", _LogprobLaunch, 5, _results)
def _run(call: _LogprobLaunch) -> tuple[Tensor, ...]:
    hidden, low, weight, labels = call.hidden, call.low, call.weight, call.labels
    config = LinearLogprobConfig._make(call.config)
    rows, width = hidden.shape
    results = _results(call)
    logprob, label_logprob, logsumexp, spread, best = results
    if not rows:
        return results
    states = torch.empty((4, call.num_splits, rows), dtype=torch.float32, device=hidden.device)
    # A bfloat16 weight with float32 states is exact in float32. The interpreter cannot multiply bfloat16 at all.
    upcast = weight.dtype != hidden.dtype or (interpreting() and hidden.dtype == torch.bfloat16)
    descriptors: tuple[TensorDescriptor | None, ...] = (None, None, None)
    if target_of(hidden.device) in _TMA_TARGETS and not upcast and all(map(_describable, (hidden, weight))):
        blocks = ((hidden, config.block_r), (low, config.block_r), (weight, config.block_v))
        descriptors = tuple(
            t if t is None else TensorDescriptor.from_tensor(t, [rows, config.block_e]) for t, rows in blocks
        )
    row_tiles = ceil_div(rows, config.block_r)
    group = min(_GROUP, row_tiles)
    factor = call.scale if call.softcap is None else 1.0  # on logits that a cap has not scaled yet
    picked = (logprob, None if labels is None else label_logprob)
    tilt, place = states[2] if call.entropy else None, states[3].view(torch.int32) if call.argmax else None
    partial = (states[0], states[1], tilt, place)
    count = 0 if labels is None else len(labels)
    pointers = (hidden, low, weight, *descriptors, call.bias, call.target, labels, *picked, *partial)
    sizes = (rows, weight.shape[0], width, count, call.tiles_per_split, call.num_splits, group)
    # By position: names would take the host a few microseconds a launch.
    linear_logprob_kernel[(ceil_div(row_tiles, group) * group * call.num_splits,)](
        *pointers,
        *sizes,
        call.scale,
        factor * _LOG2_E,
        call.softcap or 1.0,
        *hidden.stride(),
        *weight.stride(),
        SOFTCAP=call.softcap is not None,
        UPCAST=upcast,
        SWAPPED=bool(config.swapped),
        EVEN=width % config.block_e == 0,
        BLOCK_R=config.block_r,
        BLOCK_V=config.block_v,
        BLOCK_E=config.block_e,
        LOWEST=_LOWEST,
        **compiler_options(config.num_warps, config.num_stages, config.max_registers),
    )
    results_of = (logsumexp, spread if call.entropy else None, best if call.argmax else None)
    join_kernel[(ceil_div(rows, _JOIN_ROWS),)](
        *picked,
        *partial,
        *results_of,
        rows,
        call.num_splits,
        count,
        factor,
        factor * _LOG2_E,
        BLOCK_R=_JOIN_ROWS,
        BLOCK_S=_JOIN_SPLITS,
        LOWEST=_LOWEST,
    )
    return results
