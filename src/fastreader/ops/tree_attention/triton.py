# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""tree_attention in Triton: the launcher of its kernel, and the op that torch.compile sees."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from fastreader.ops.merge_state.triton import merge_stack_triton
from fastreader.ops.tree_attention.device_schedule import CallShape, DeviceSchedule, device_schedule, pack_heads
from fastreader.ops.tree_attention.plan import AttentionContext
from fastreader.ops.tree_attention.triton_config import TreeAttentionConfig
from fastreader.ops.tree_attention.triton_kernel import tree_attention_kernel
from fastreader.ops.triton_support import ceil_div, interpreting, power_of_2, processors, triton_op, with_near_tiles

_LOG2_E = 1.0 / math.log(2.0)
_MAX_SPLITS = 64
_MOST_COLUMNS = 512  # of one block of a head: 576 columns are 512 and 64, not 1,024
_BLOCKS_PER_SPLIT = 4  # fewer key blocks are not worth a program


def is_describable(tensor: Tensor) -> bool:
    """Return whether the tensor memory accelerator takes keys or values [T, H, D] as rows of all heads."""
    packed = tensor.stride(2) == 1 and tensor.stride(1) == tensor.shape[2]
    return packed and tensor.stride(0) % 8 == 0 and tensor.data_ptr() % 16 == 0


def head_blocks(size: int) -> tuple[int, int]:
    """Return how the columns of queries and keys are read: (a power of two, another for what it leaves or 0)."""
    if size <= _MOST_COLUMNS:
        return max(power_of_2(size), 16), 0
    return _MOST_COLUMNS, max(power_of_2(size - _MOST_COLUMNS), 16)


def tree_attention_triton(
    context: AttentionContext, *, config: TreeAttentionConfig | None = None, num_splits: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return (out, lse) of a call, lse float32 and empty unless it is needed.

    `config` and `num_splits` replace the pinned configuration and the number of programs that share a tile's keys.
    """
    query, key, value, scale, window = context.query, context.key, context.value, context.scale, context.window
    if scale <= 0:  # the kernel takes maxima before it scales
        query, scale = query * (0.0 if scale == 0 else -1.0), abs(scale) or 1.0
    shape, device = CallShape.of(context), query.device
    asked = (shape, device, config, num_splits)
    call = context.plan.memo.get(asked)
    if call is None:
        call = context.plan.memo[asked] = _Call.of(context, shape, config, num_splits)
    config, tables = call.config, call.tables
    if config.described and not (is_describable(key) and is_describable(value)):
        key, value = key.contiguous(), value.contiguous()
    needs_positions = window is not None or context.slopes is not None
    positions = (context.query_positions, context.key_positions) if needs_positions else (None, None)
    out, lse = _run(
        with_near_tiles(query, call.query_tile),
        with_near_tiles(key, call.key_tile),
        with_near_tiles(value, call.value_tile),
        context.subtree_end.contiguous(),
        context.query_node.to(torch.int32).contiguous(),
        *(None if tensor is None else tensor.contiguous() for tensor in positions),
        *(tables.tiles, tables.block_start, tables.block_stop),
        *(float(scale), window, context.softcap, context.sinks, context.slopes),
        *(context.return_lse, call.num_splits),
        call.numbers,
        config.max_registers,
    )
    return out, lse


class _Call(NamedTuple):
    """What calls of one kind on one plan have in common.

    Attributes:
        config: of the kernel; `numbers` are its fields as the op takes them.
        tables: the schedule on the device.
        num_splits: programs that share a tile's keys.
        query_tile, key_tile, value_tile: tokens, heads and columns that a tile reaches over.
    """

    config: TreeAttentionConfig
    numbers: list[int]
    tables: DeviceSchedule
    num_splits: int
    query_tile: tuple[int, int, int]
    key_tile: tuple[int, int, int]
    value_tile: tuple[int, int, int]

    @classmethod
    def of(
        cls, context: AttentionContext, shape: CallShape, config: TreeAttentionConfig | None, num_splits: int | None
    ) -> _Call:
        """Return it for a call, with the pinned configuration and number of splits unless others are given."""
        device, groups = context.query.device, context.groups
        config = config or shape.config(device, len(context.query))
        packed, chunks = pack_heads(groups, config.block_m)
        tables = device_schedule(shape.schedule(context.plan, device, config), device)
        if num_splits is None:
            programs = max(len(tables.tiles) * shape.key_heads * chunks, 1)
            wanted = ceil_div(2 * processors(device), programs)
            num_splits = min(wanted, ceil_div(tables.longest, _BLOCKS_PER_SPLIT), _MAX_SPLITS)
        return cls(
            config,
            [config.block_m, config.block_n, config.num_warps, config.num_stages, config.described, config.split],
            tables,
            max(num_splits, 1),
            (config.block_m // packed, groups, shape.size),
            (config.block_n, 1, shape.size),
            (config.block_n, 1, shape.value_size),
        )


def _fake(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return_lse = others[-4]
    tokens, heads, _ = query.shape
    out = query.new_empty((tokens, heads, value.shape[2]))
    return out, query.new_empty((tokens if return_lse else 0, heads), dtype=torch.float32)


@triton_op(
    "tree_attention_triton(Tensor query, Tensor key, Tensor value, Tensor subtree_end, Tensor query_node, "
    "Tensor? query_positions, Tensor? key_positions, Tensor tiles, Tensor block_start, Tensor block_stop, "
    "float scale, int? window, float? softcap, Tensor? sinks, Tensor? slopes, bool return_lse, int num_splits, "
    "int[] config, int? max_registers) -> (Tensor, Tensor)",
    _fake,
)
def _run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    subtree_end: Tensor,
    query_node: Tensor,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
    tiles: Tensor,
    block_start: Tensor,
    block_stop: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    slopes: Tensor | None,
    return_lse: bool,
    num_splits: int,
    config: list[int],
    max_registers: int | None,
) -> tuple[Tensor, Tensor]:
    tokens, heads, size = query.shape
    key_heads, value_size = key.shape[1], value.shape[2]
    groups = heads // max(key_heads, 1)
    block_m, block_n, num_warps, num_stages, describes, split = config
    packed, chunks = pack_heads(max(groups, 1), block_m)
    block_d, block_rest = head_blocks(size)
    device = query.device
    # The interpreter multiplies bfloat16 as raw bits, and truncates, so there the kernel computes in float32.
    upcast = interpreting() and (split or query.dtype == torch.bfloat16)
    out = torch.empty((tokens, heads, value_size), dtype=torch.float32 if upcast else query.dtype, device=device)
    lse = torch.empty((tokens if return_lse else 0, heads), dtype=torch.float32, device=device)
    if len(tiles) * key_heads * chunks == 0:
        return out.to(query.dtype), lse
    part, part_lse = out, lse if return_lse else None
    if num_splits > 1:
        part = torch.empty((num_splits, tokens, heads, value_size), dtype=torch.float32, device=device)
        part_lse = torch.empty((num_splits, tokens, heads), dtype=torch.float32, device=device)
    descriptors: tuple[TensorDescriptor | None, ...] = (None, None)
    if describes and not upcast:
        descriptors = tuple(
            TensorDescriptor(t, [len(t), t.shape[1] * t.shape[2]], [t.stride(0), 1], [block_n, t.shape[2]])
            for t in (key, value)
        )
    tree_attention_kernel[(len(tiles), key_heads * chunks, num_splits)](
        *(
            query,
            key,
            value,
            *descriptors,
            part,
            part_lse,
            subtree_end,
            query_node,
            query_positions,
            key_positions,
            sinks,
            slopes,
        ),
        *(tiles, block_start, block_stop, tokens, num_splits, groups),
        scale,
        scale * _LOG2_E if softcap is None and slopes is None else _LOG2_E,
        softcap or 1.0,
        window or 0,
        *query.stride(),
        *key.stride(),
        *value.stride(),
        heads * value_size,
        value_size,
        heads,
        D=size,
        DV=value_size,
        HEADS_PACKED=packed,
        HEAD_CHUNKS=chunks,
        WINDOW=window is not None,
        SOFTCAP=softcap is not None,
        UPCAST=upcast,
        SPLIT=bool(split),
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_D=block_d,
        BLOCK_REST=block_rest,
        BLOCK_DV=max(power_of_2(value_size), 16),
        num_warps=num_warps,
        num_stages=num_stages,
        maxnreg=max_registers,
        enable_fp_fusion=True,
    )
    if num_splits > 1 and part_lse is not None:
        merge_stack_triton(part, part_lse, out, lse if return_lse else None)
    return out.to(query.dtype), lse
