"""tree_attention by the C++ kernels (csrc/tree_attention*): what they take, their tile sizes, the call."""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.ops import extension
from fastreader.ops.tree_attention import schema as _schema  # noqa: F401  (defines the op)
from fastreader.ops.tree_attention.plan import AttentionPlan

_STRIP = 32  # query rows a strip (kStrip in csrc/kernels.h)
_ROWS = 128  # rows a tile at most, where one token's heads are not more
_KEY_BLOCK = 64  # softmax over more would let the tile unit fall asleep, see csrc/tree_attention_tile.inl
_MAX_SIZE = 256
_MAX_GROUPS = 2048


def why_not(query: Tensor, key: Tensor, value: Tensor) -> str | None:
    """Why the kernels cannot take these inputs here, or None when they can."""
    missing = extension.why_missing()
    if missing is not None:
        return missing
    if query.device.type != "cpu":
        return f"the C++ kernels run on the CPU, the inputs are on {query.device}"
    if query.dtype not in (torch.float32, torch.bfloat16):
        return f"the C++ kernels take float32 and bfloat16, got {query.dtype}"
    if value.shape[2] > _MAX_SIZE:
        return f"the C++ kernels take value sizes up to {_MAX_SIZE}, got {value.shape[2]}"
    if query.shape[1] > _MAX_GROUPS * max(key.shape[1], 1):
        return f"the C++ kernels take up to {_MAX_GROUPS} query heads a key head"
    return None


def query_block(groups: int) -> int:
    """Tokens a tile: of those that fill at most 128 rows, the most that pad least up to whole strips."""
    most = max(_ROWS // groups, 1)

    def waste(tokens: int) -> float:
        return -(-tokens * groups // _STRIP) * _STRIP / (tokens * groups)

    return min(range(max(most // 2, 1), most + 1), key=lambda tokens: (waste(tokens), -tokens))


def tree_attention_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_node: Tensor,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
    scale: float,
    window: int | None,
    softcap: float | None,
    split: bool,
    plan: AttentionPlan,
    return_lse: bool,
) -> tuple[Tensor, Tensor]:
    """Arguments as `tree_attention`, the tree in the plan.

    Returns (output [Tq, Hq, Dv], lse float32 [Tq, Hq], empty unless asked for).
    """
    groups = query.shape[1] // max(key.shape[1], 1)
    schedule = plan.slot_schedule(window, query_block(max(groups, 1)), _KEY_BLOCK)
    out, lse = torch.ops.fastreader.tree_attention(
        query,
        key,
        value,
        *(torch.from_numpy(array) for array in plan.slots.arrays),
        query_node,
        None if query_positions is None else query_positions.contiguous(),
        None if key_positions is None else key_positions.contiguous(),
        *(torch.from_numpy(array) for array in schedule.arrays),
        scale,
        window,
        softcap,
        split,
        return_lse,
        extension.instruction_set(),
    )
    return out, lse
