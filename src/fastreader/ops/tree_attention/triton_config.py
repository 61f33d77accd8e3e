"""Pinned launch configurations of tree_attention's Triton kernel."""

from __future__ import annotations

from typing import NamedTuple

import torch


class TreeAttentionConfig(NamedTuple):
    """Rows of queries (tokens x packed heads) and keys of a block, warps, pipeline stages and maximum of registers.

    `max_registers` guides the compiler, which for float32 otherwise aims at more warps than fit and spills a few bytes;
    0 leaves it free. `described` has the tensor memory accelerator load keys and values. `split` multiplies float32
    operands as sums of two bfloat16 terms.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    max_registers: int = 0
    described: bool = False
    split: bool = False


# The pinned configurations, by compute capability and largest head size (96: all sizes between 64 and 128, padded to
# 128; 192 likewise; 576 are blocks of 512 and 64). `make compile-report` checks that none spills or exceeds shared
# memory, with or without a window, a soft cap, sinks, slopes and lse. Sums of 64 x 512 do not fit the registers, so
# the largest sizes have tiles below 64 rows and no wgmma or tcgen05.
_SIZES = (64, 96, 128, 192, 256, 512, 576)
_NARROW, _WIDE = TreeAttentionConfig(128, 64, 8, 3), TreeAttentionConfig(128, 64, 8, 2)
_FLAT, _DEEP = TreeAttentionConfig(128, 32, 8, 2), TreeAttentionConfig(64, 32, 8, 2)
_LARGE = TreeAttentionConfig(32, 16, 8, 2)
_SMALL_SHARED = (TreeAttentionConfig(32, 16, 8, 1), TreeAttentionConfig(16, 32, 8, 1))  # 99 KiB of shared memory


def _by_size(*configs: TreeAttentionConfig) -> dict[int, TreeAttentionConfig]:
    return dict(zip(_SIZES, configs, strict=True))


_HALF = {
    80: _by_size(_NARROW, _FLAT, _FLAT, _DEEP, _DEEP, _LARGE, _LARGE),
    89: _by_size(_NARROW, _FLAT, _FLAT, _DEEP, _DEEP, *_SMALL_SHARED),
    90: _by_size(_NARROW, _WIDE, _WIDE, _FLAT, _FLAT, _LARGE, _LARGE),
    100: _by_size(_NARROW, _WIDE, _WIDE, _DEEP, _DEEP, _LARGE, _LARGE),
    120: _by_size(_NARROW, _FLAT, _FLAT, _DEEP, _DEEP, *_SMALL_SHARED),
}
_THIN, _THIN_DEEP = TreeAttentionConfig(32, 16, 8, 1, 255), TreeAttentionConfig(16, 32, 8, 1, 168)
_SINGLE = {64: TreeAttentionConfig(64, 32, 8, 1, 255), 96: _THIN, 128: _THIN, 192: _THIN_DEEP, 256: _THIN_DEEP}
_SINGLE[512] = TreeAttentionConfig(16, 16, 8, 1, 168)
# Without window, cap, sinks and slopes: with 128 registers a thread two programs run on a processor, so that one
# multiplies during the other's softmax; at 128 columns small tiles do so too (measured on an H200, W1: 0.377 ms, and
# 0.454 with 128 x 128; equal on W4).
_PLAIN = {90: {64: TreeAttentionConfig(128, 64, 8, 3, 128, True), 128: TreeAttentionConfig(64, 64, 4, 3, 0, True)}}
_SPLIT = {90: {64: TreeAttentionConfig(128, 64, 8, 2, split=True), 128: TreeAttentionConfig(128, 32, 8, 2, split=True)}}
_FEW_ROWS = 16  # the fewest tl.dot takes
_FEW, _FEW_DEEP = TreeAttentionConfig(16, 64, 4, 2), TreeAttentionConfig(16, 32, 4, 2)
_FEW_LARGE = TreeAttentionConfig(16, 16, 4, 2, 255)
_HALF_FEW = _by_size(_FEW._replace(num_stages=3), _FEW, _FEW, _FEW_DEEP, _FEW_DEEP, _FEW_LARGE, _FEW_LARGE)


def default_config(
    target: int,
    size: int,
    dtype: torch.dtype,
    rows: int,
    *,
    terms: bool = False,
    plain: bool = False,
    split: bool = False,
) -> TreeAttentionConfig:
    """Return the pinned configuration.

    Args:
        target: an entry of `triton_support.TARGETS`.
        size: larger one of key and value head size.
        dtype: type of the inputs.
        rows: query tokens times query heads per key head; few rows of a half type have their own configuration.
        terms: whether there are sinks or slopes, which take registers.
        plain: whether values have the keys' size, and there is neither a window nor a soft cap.
        split: whether float32 operands may be sums of two bfloat16 terms.
    """
    if size in (128, 256) or size <= 64:
        bucket = max(size, 64)
    else:  # padded
        bucket = 96 if size < 128 else 192 if size < 256 else 512 if size <= 512 else 576
    if dtype == torch.float32:
        if split and plain and not terms and size in _SPLIT.get(target, ()):
            return _SPLIT[target][size]
        config = _SINGLE[bucket]  # has no entry above 512, see `api`
        if terms:
            keys = config.block_n if size <= 128 else 16
            config = config._replace(block_m=min(config.block_m, 32), block_n=keys, max_registers=255)
        return config
    if plain and not terms and rows > _FEW_ROWS and size in _PLAIN.get(target, ()):
        return _PLAIN[target][size]
    if rows <= _FEW_ROWS:
        return _HALF_FEW[bucket]
    config = _HALF[target][bucket]
    if terms and config in (_WIDE, _FLAT):
        return _DEEP
    if terms and config == _DEEP and target not in (90, 100):  # sums of mma.sync are all in registers
        return config._replace(block_m=32, max_registers=255)
    if target == 80 and bucket == 64 and (terms or not plain):
        return config._replace(block_n=32)
    return config
