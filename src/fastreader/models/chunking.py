"""Blocks of tokens for what treats each token alone."""

from __future__ import annotations

import torch

# On a CPU a feed-forward 1,536 wide then works on 3 MB at a time, which stays in cache.
_CPU_ROWS = 512
# Elsewhere a block only bounds memory, and each one launches its kernels anew: 21,845 rows of that feed-forward's gate
# and input, 2,340 of an 8B model's.
_VALUES = 2**26
_FEWEST_ROWS = 512
WIDEST = 8  # gate and input of a feed-forward whose width is not known, in hidden sizes, about


def rows_of_block(device: torch.device, width: int) -> int:
    """Rows of a block on this device, whose widest intermediate result has `width` values a row."""
    return _CPU_ROWS if device.type == "cpu" else max(_FEWEST_ROWS, _VALUES // width)


def blocks_of(rows: int, device: torch.device, width: int) -> list[slice]:
    """Slices that cover `rows` tokens in order; one where they are few."""
    size = rows_of_block(device, width)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
