"""fastreader::tree_attention for torch.library: its signature, and shapes without data.

The CPU kernel is registered by the C++ extension (csrc/tree_attention.cpp). The schedule comes as plain tensors,
so that an op can be traced and exported.
"""

from __future__ import annotations

import torch
from torch import Tensor

LIBRARY = torch.library.Library("fastreader", "FRAGMENT")  # type: ignore[no-untyped-call]
LIBRARY.define(  # type: ignore[no-untyped-call]
    "tree_attention(Tensor query, Tensor key, Tensor value, Tensor until, Tensor anchor, Tensor? query_positions, "
    "Tensor? key_positions, Tensor tile_start, Tensor tile_stop, Tensor block_ptr, Tensor block_start, "
    "Tensor block_stop, Tensor block_full, float scale, int? window, float? softcap, bool split, bool return_lse, "
    "str isa) -> (Tensor, Tensor)"
)


@torch.library.register_fake("fastreader::tree_attention", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _fake(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    until: Tensor,
    anchor: Tensor,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
    tile_start: Tensor,
    tile_stop: Tensor,
    block_ptr: Tensor,
    block_start: Tensor,
    block_stop: Tensor,
    block_full: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    split: bool,
    return_lse: bool,
    isa: str,
) -> tuple[Tensor, Tensor]:
    rows, heads, _ = query.shape
    out = query.new_empty((rows, heads, value.shape[2]))
    return out, query.new_empty((rows if return_lse else 0, heads), dtype=torch.float32)
