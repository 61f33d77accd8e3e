"""tree_attention by the C++ kernels (csrc/tree_attention*)."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from fastreader.ops import extension
from fastreader.ops.extension import define
from fastreader.ops.operands import MAX_HEAD_SIZE
from fastreader.ops.tree_attention.plan import AttentionContext

_CHUNK = 32  # query rows that are packed together (kStrip in csrc/kernels.h)
_ROWS = 128  # at most this many rows in a tile, unless one token has more heads
_WIDE, _WIDE_ROWS = 256, 64  # above this head size fewer rows, so that queries and sums stay in the second cache
_KEY_BLOCK = 64  # with larger blocks the tile unit falls asleep during softmax, see csrc/tree_attention_tile.inl
_MAX_GROUPS = 2048


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


def why_not(query: Tensor, key: Tensor, value: Tensor) -> str | None:
    """Return why the kernels cannot take these inputs here, or None if they can."""
    why = extension.why_not(query)
    if why is not None:
        return why
    if value.shape[2] > MAX_HEAD_SIZE:
        return f"the C++ kernels take value sizes up to {MAX_HEAD_SIZE}, got {value.shape[2]}"
    if query.shape[1] > _MAX_GROUPS * max(key.shape[1], 1):
        return f"the C++ kernels take at most {_MAX_GROUPS} query heads per key head"
    return None


@cache
def query_block(groups: int, size: int = _WIDE) -> int:
    """Return the number of tokens in a tile: it fills at most 128 rows and pads least up to whole chunks.

    Args:
        groups: query heads per key head.
        size: larger one of key and value head size; above 256 a tile has at most 64 rows.
    """
    most = max((_ROWS if size <= _WIDE else _WIDE_ROWS) // groups, 1)

    def waste(tokens: int) -> float:
        return -(-tokens * groups // _CHUNK) * _CHUNK / (tokens * groups)

    return min(range(max(most // 2, 1), most + 1), key=lambda tokens: (waste(tokens), -tokens))


def tree_attention_cpu(context: AttentionContext) -> tuple[Tensor, Tensor]:
    """Return (out, lse) of a call, lse empty unless it is needed."""
    (_, heads, size), (_, key_heads, value_size) = context.query.shape, context.value.shape
    size = max(size, value_size)
    tile = query_block(heads // max(key_heads, 1) or 1, size)
    schedule = context.plan.schedule(context.window, tile, _KEY_BLOCK, None)
    query_positions = None if context.query_positions is None else context.query_positions.contiguous()
    key_positions = None if context.key_positions is None else context.key_positions.contiguous()
    options = context.scale, context.window, context.softcap, context.sinks, context.slopes, context.input_precision
    # By position: torch takes five times as long to match 24 arguments by name.
    out, lse = torch.ops.fastreader.tree_attention(
        context.query,
        context.key,
        context.value,
        *context.plan.slots.tensors,
        context.query_node,
        query_positions,
        key_positions,
        *schedule.tensors,
        *options,
        context.return_lse,
        extension.instruction_set(),
    )
    return out, lse
