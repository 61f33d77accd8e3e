"""The ops of the C++ kernels (csrc/tree_attention.cpp, csrc/tree_slots.cpp) and their fakes.

Slots and schedule are plain tensors, so that the op can be traced and exported.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastreader.ops.library import define


@define("tree_slots(Tensor subtree_end) -> (Tensor, Tensor, Tensor, Tensor)")
def _slots(subtree_end: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    chunks = torch.library.get_ctx().new_dynamic_size()
    key, birth, end = (subtree_end.new_empty(32 * chunks) for _ in range(3))
    return key, birth, end, subtree_end.new_empty((chunks, 5))


@define(
    "tree_attention(Tensor query, Tensor key, Tensor value, Tensor slot_key, Tensor slot_birth, Tensor slot_end, "
    "Tensor chunks, Tensor query_node, Tensor? query_positions, Tensor? key_positions, Tensor tile_start, "
    "Tensor tile_stop, Tensor block_ptr, Tensor block_start, Tensor block_stop, Tensor block_full, float scale, "
    "int? window, float? softcap, Tensor? sinks, Tensor? slopes, str? input_precision, bool return_lse, str isa) "
    "-> (Tensor, Tensor)"
)
def _attention(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    rows, heads, _ = query.shape
    return_lse = others[-2]
    out = query.new_empty((rows, heads, value.shape[2]))
    return out, query.new_empty((rows if return_lse else 0, heads), dtype=torch.float32)
