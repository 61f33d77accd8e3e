"""Run modules that treat each token independently over chunks of tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

_CPU_ROWS = 512  # a feed-forward 1,536 wide then works on 3 MB at a time, which stays in cache
# On other devices a chunk only bounds memory, and each one launches its kernels again: 21,845 rows of that
# feed-forward's gate and input, 2,340 of an 8B model's.
_MAX_VALUES = 2**26
_MIN_ROWS = 512
ASSUMED_WIDTH = 8  # gate and input of a feed-forward of unknown width, roughly, in hidden sizes


def chunk_rows(device: torch.device, width: int) -> int:
    """Return the rows of a chunk on this device, if its widest intermediate result has `width` values per row."""
    return _CPU_ROWS if device.type == "cpu" else max(_MIN_ROWS, _MAX_VALUES // width)


@lru_cache(maxsize=256)
def chunks(rows: int, device: torch.device, width: int) -> list[slice]:
    """Return slices that cover `rows` tokens in order, or a single one if they are few."""
    size = chunk_rows(device, width)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def map_chunks(function: Callable[[Tensor], Tensor], rows: Tensor, width: int) -> Tensor:
    """Return a function of rows [B, E] -> [B, F], applied to chunks of `rows` [T, E]: [T, F]."""
    parts = chunks(len(rows), rows.device, width)
    if len(parts) <= 1:
        return function(rows)
    first = function(rows[parts[0]])
    out = first.new_empty(len(rows), *first.shape[1:])
    out[parts[0]] = first
    for part in parts[1:]:
        out[part] = function(rows[part])
    return out
