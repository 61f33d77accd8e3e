# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""tree_attention in Triton: the launcher of its kernel, and the op that torch.compile sees."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from fastreader.ops.merge_state.triton import merge_stack_triton
from fastreader.ops.tree_attention.device_schedule import CallShape, DeviceSchedule, device_schedule, pack_heads
from fastreader.ops.tree_attention.plan import AttentionContext
from fastreader.ops.tree_attention.triton_config import TreeAttentionConfig
from fastreader.ops.tree_attention.triton_kernel import tree_attention_kernel
from fastreader.ops.triton_support import (
    ceil_div,
    compiler_options,
    interpreting,
    power_of_2,
    processors,
    triton_op,
    with_near_tiles,
)

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
    query, key, value, scale = context.query, context.key, context.value, context.scale
    if scale <= 0:  # the kernel takes maxima before it scales
        query, scale = query * (0.0 if scale == 0 else -1.0), abs(scale) or 1.0
    shape, device = CallShape.of(context), query.device
    kind = (shape, device, config, num_splits)
    plan = context.plan.memo.get(kind)
    if plan is None:
        plan = context.plan.memo[kind] = _LaunchPlan.of(context, shape, config, num_splits)
    if plan.config.described and not (is_describable(key) and is_describable(value)):
        key, value = key.contiguous(), value.contiguous()
    positions = (context.query_positions, context.key_positions)
    if context.window is None and context.slopes is None:
        positions = (None, None)
    query_positions, key_positions = (None if tensor is None else tensor.contiguous() for tensor in positions)
    return _run(
        _TreeLaunch(
            query=with_near_tiles(query, plan.query_tile),
            key=with_near_tiles(key, plan.key_tile),
            value=with_near_tiles(value, plan.value_tile),
            subtree_end=context.subtree_end.contiguous(),
            query_node=context.query_node.to(torch.int32).contiguous(),
            query_positions=query_positions,
            key_positions=key_positions,
            tiles=plan.tables.tiles,
            block_start=plan.tables.block_start,
            block_stop=plan.tables.block_stop,
            scale=float(scale),
            window=context.window,
            softcap=context.softcap,
            sinks=context.sinks,
            slopes=context.slopes,
            return_lse=context.return_lse,
            num_splits=plan.num_splits,
            config=plan.numbers,
        )
    )


class _LaunchPlan(NamedTuple):
    """Tables and configuration of all calls of one kind on one plan.

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
    ) -> _LaunchPlan:
        """Return the plan of a call, with the pinned configuration and number of splits unless others are given."""
        device, groups = context.query.device, context.groups
        config = config or shape.config(device, len(context.query))
        packed, chunks = pack_heads(groups, config.block_m)
        tables = device_schedule(shape.schedule(context.plan, device, config), device)
        if num_splits is None:
            programs = max(len(tables.tiles) * shape.key_heads * chunks, 1)
            wanted = ceil_div(2 * processors(device), programs)
            num_splits = min(wanted, ceil_div(tables.longest, _BLOCKS_PER_SPLIT), _MAX_SPLITS)
        return cls(
            config=config,
            numbers=list(config),
            tables=tables,
            num_splits=max(num_splits, 1),
            query_tile=(config.block_m // packed, groups, shape.size),
            key_tile=(config.block_n, 1, shape.size),
            value_tile=(config.block_n, 1, shape.value_size),
        )


class _TreeLaunch(NamedTuple):
    """Arguments of the op, of which `config` holds the fields of a `TreeAttentionConfig`."""

    query: Tensor
    key: Tensor
    value: Tensor
    subtree_end: Tensor
    query_node: Tensor
    query_positions: Tensor | None
    key_positions: Tensor | None
    tiles: Tensor
    block_start: Tensor
    block_stop: Tensor
    scale: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None
    slopes: Tensor | None
    return_lse: bool
    num_splits: int
    config: list[int]


def _fake(call: _TreeLaunch) -> tuple[Tensor, Tensor]:
    tokens, heads, _ = call.query.shape
    out = call.query.new_empty((tokens, heads, call.value.shape[2]))
    return out, call.query.new_empty((tokens if call.return_lse else 0, heads), dtype=torch.float32)


@triton_op("tree_attention_triton", _TreeLaunch, 2, _fake)
def _run(call: _TreeLaunch) -> tuple[Tensor, Tensor]:
    query, key, value, num_splits = call.query, call.key, call.value, call.num_splits
    config = TreeAttentionConfig._make(call.config)
    tokens, heads, size = query.shape
    key_heads, value_size = key.shape[1], value.shape[2]
    groups = heads // max(key_heads, 1)
    packed, chunks = pack_heads(max(groups, 1), config.block_m)
    block_d, block_rest = head_blocks(size)
    device, single = query.device, torch.float32
    # The interpreter multiplies bfloat16 as raw bits, and truncates, so there the kernel computes in float32.
    upcast = interpreting() and (bool(config.split) or query.dtype == torch.bfloat16)
    out = torch.empty((tokens, heads, value_size), dtype=single if upcast else query.dtype, device=device)
    lse = torch.empty((tokens if call.return_lse else 0, heads), dtype=single, device=device)
    if len(call.tiles) * key_heads * chunks == 0:
        return out.to(query.dtype), lse
    part, part_lse = out, lse if call.return_lse else None
    if num_splits > 1:
        part = torch.empty((num_splits, tokens, heads, value_size), dtype=single, device=device)
        part_lse = torch.empty((num_splits, tokens, heads), dtype=single, device=device)
    descriptors: tuple[TensorDescriptor | None, ...] = (None, None)
    if config.described and not upcast:
        descriptors = _descriptor(key, config.block_n), _descriptor(value, config.block_n)
    in_nats = call.softcap is not None or call.slopes is not None
    operands = (query, key, value, *descriptors, part, part_lse, call.subtree_end, call.query_node)
    terms = (call.query_positions, call.key_positions, call.sinks, call.slopes)
    tables = (call.tiles, call.block_start, call.block_stop)
    scale_log2 = _LOG2_E if in_nats else call.scale * _LOG2_E
    numbers = (tokens, num_splits, groups, call.scale, scale_log2, call.softcap or 1.0, call.window or 0)
    steps = (*query.stride(), *key.stride(), *value.stride(), heads * value_size, value_size, heads)
    # By position: names would take the host a few microseconds a launch.
    tree_attention_kernel[(len(call.tiles), key_heads * chunks, num_splits)](
        *operands,
        *terms,
        *tables,
        *numbers,
        *steps,
        D=size,
        DV=value_size,
        HEADS_PACKED=packed,
        HEAD_CHUNKS=chunks,
        WINDOW=call.window is not None,
        SOFTCAP=call.softcap is not None,
        UPCAST=upcast,
        SPLIT=bool(config.split),
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_D=block_d,
        BLOCK_REST=block_rest,
        BLOCK_DV=max(power_of_2(value_size), 16),
        **compiler_options(config.num_warps, config.num_stages, config.max_registers),
    )
    if num_splits > 1 and part_lse is not None:
        merge_stack_triton(part, part_lse, out, lse if call.return_lse else None)
    return out.to(query.dtype), lse


def _descriptor(tensor: Tensor, rows: int) -> TensorDescriptor:
    """Return a descriptor by which the tensor memory accelerator loads `rows` tokens of a head."""
    tokens, heads, size = tensor.shape
    return TensorDescriptor(tensor, [tokens, heads * size], [tensor.stride(0), 1], [rows, size])
