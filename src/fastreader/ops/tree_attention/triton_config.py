"""Pinned launch configurations of tree_attention's Triton kernel."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Config(NamedTuple):
    """Rows of queries (tokens x packed heads) and keys of a block, warps, pipeline stages and maximum of registers.

    `max_registers` guides the compiler, which for float32 otherwise aims at more warps than fit and spills a few bytes.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None


# The pinned configurations, by compute capability and largest head size (96: all sizes between 64 and 128, padded to
# 128; 192 likewise). The compile report (docs/compile-report.md) checks that none spills or exceeds shared memory,
# with or without a window, a soft cap and lse.
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
    """Return the pinned configuration.

    Args:
        target: an entry of `triton_support.TARGETS`.
        size: larger one of key and value head size.
        dtype: type of the inputs.
        rows: query tokens times query heads per key head; few rows of a half type have their own configuration.
    """
    bucket = 64 if size <= 64 else 96 if size < 128 else 128 if size == 128 else 192 if size < 256 else 256
    if dtype == torch.float32:
        return _SINGLE[bucket]
    return _HALF_FEW[bucket] if rows <= _FEW_ROWS else _HALF[target][bucket]
