"""fastreader::tree_attention for torch.library: its signature, and shapes without data.

The CPU kernels are registered by the C++ extension (csrc/tree_attention.cpp, csrc/tree_slots.cpp). Slots and
schedule come as plain tensors, so that an op can be traced and exported.
"""

from __future__ import annotations

import torch
from torch import Tensor

LIBRARY = torch.library.Library("fastreader", "FRAGMENT")  # type: ignore[no-untyped-call]
LIBRARY.define("tree_slots(Tensor subtree_end) -> (Tensor, Tensor, Tensor, Tensor)")  # type: ignore[no-untyped-call]
LIBRARY.define(  # type: ignore[no-untyped-call]
    "tree_attention(Tensor query, Tensor key, Tensor value, Tensor slot_key, Tensor slot_birth, Tensor slot_end, "
    "Tensor chunks, Tensor query_node, Tensor? query_positions, Tensor? key_positions, Tensor tile_start, "
    "Tensor tile_stop, Tensor block_ptr, Tensor block_start, Tensor block_stop, Tensor block_full, float scale, "
    "int? window, float? softcap, bool split, bool return_lse, str isa) -> (Tensor, Tensor)"
)


@torch.library.register_fake("fastreader::tree_slots", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _fake_slots(subtree_end: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    chunks = torch.library.get_ctx().new_dynamic_size()
    slots = [subtree_end.new_empty(32 * chunks) for _ in range(3)]
    return slots[0], slots[1], slots[2], subtree_end.new_empty((chunks, 5))


@torch.library.register_fake("fastreader::tree_attention", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _fake(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slot_key: Tensor,
    slot_birth: Tensor,
    slot_end: Tensor,
    chunks: Tensor,
    query_node: Tensor,
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
