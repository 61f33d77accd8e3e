# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""tree_attention in Triton: how its kernel is launched, and the operator that torch.compile sees."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor

from fastreader.ops.merge_state.triton import merge_stack_triton
from fastreader.ops.tree_attention.plan import AttentionPlan
from fastreader.ops.tree_attention.triton_config import Config, default_config
from fastreader.ops.tree_attention.triton_kernel import tree_attention_kernel
from fastreader.ops.tree_attention.triton_schedule import device_schedule
from fastreader.ops.triton_support import interpreting, processors, target_of, triton_op, with_near_tiles

_LOG2_E = 1.0 / math.log(2.0)
_MAX_SPLITS = 64
_BLOCKS_A_SPLIT = 4  # key blocks that are worth a program of their own


def pack_heads(groups: int, block_m: int) -> tuple[int, int]:
    """How the query heads of a key head become rows: (heads packed in one tile, tiles a token stretch needs)."""
    chunks = -(-groups // block_m)
    return -(-groups // chunks), chunks


def tree_attention_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    subtree_end: Tensor,
    query_node: Tensor,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
    scale: float,
    window: int | None,
    softcap: float | None,
    plan: AttentionPlan,
    return_lse: bool,
    *,
    config: Config | None = None,
    splits: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Arguments as `tree_attention`; `config` and `splits` replace the pinned configuration and key-splitting.

    Returns (output [Tq, Hq, Dv] in the input dtype, lse float32 [Tq, Hq] or None).
    """
    tokens, heads, size = query.shape
    key_heads, value_size = key.shape[1], value.shape[2]
    device = query.device
    if scale <= 0:  # the kernel takes maxima before it scales
        query, scale = query * (0.0 if scale == 0 else -1.0), abs(scale) or 1.0
    groups = heads // max(key_heads, 1)
    if config is None:
        config = default_config(target_of(device), max(size, value_size), query.dtype, tokens * groups)
    packed, chunks = pack_heads(max(groups, 1), config.block_m)
    query = with_near_tiles(query, (config.block_m // packed, max(groups, 1), size))
    key = with_near_tiles(key, (config.block_n, 1, size))
    value = with_near_tiles(value, (config.block_n, 1, value_size))
    schedule = plan.schedule(window, config.block_m // packed, config.block_n)
    tables = device_schedule(schedule, device)
    if splits is None:
        programs = max(len(tables.tiles) * key_heads * chunks, 1)
        splits = min(
            triton.cdiv(2 * processors(device), programs), triton.cdiv(tables.longest, _BLOCKS_A_SPLIT), _MAX_SPLITS
        )
    out, lse = torch.ops.fastreader.tree_attention_triton(
        query,
        key,
        value,
        subtree_end.contiguous(),
        query_node.contiguous(),
        query_positions.contiguous() if window is not None and query_positions is not None else None,
        key_positions.contiguous() if window is not None and key_positions is not None else None,
        tables.tiles,
        tables.block_start,
        tables.block_stop,
        float(scale),
        window,
        softcap,
        return_lse,
        max(splits, 1),
        [config.block_m, config.block_n, config.num_warps, config.num_stages],
        config.max_registers,
    )
    return out, lse if return_lse else None


@triton_op(
    "tree_attention_triton(Tensor query, Tensor key, Tensor value, Tensor subtree_end, Tensor query_node, "
    "Tensor? query_positions, Tensor? key_positions, Tensor tiles, Tensor block_start, Tensor block_stop, "
    "float scale, int? window, float? softcap, bool return_lse, int splits, int[] config, int? max_registers) "
    "-> (Tensor, Tensor)"
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
    return_lse: bool,
    splits: int,
    config: list[int],
    max_registers: int | None,
) -> tuple[Tensor, Tensor]:
    tokens, heads, size = query.shape
    key_heads, value_size = key.shape[1], value.shape[2]
    groups = heads // max(key_heads, 1)
    block_m, block_n, num_warps, num_stages = config
    packed, chunks = pack_heads(max(groups, 1), block_m)
    device = query.device
    # The interpreter mistakes bfloat16 (it multiplies raw bits, and truncates): there it computes in float32.
    upcast = interpreting() and query.dtype == torch.bfloat16
    out = torch.empty((tokens, heads, value_size), dtype=torch.float32 if upcast else query.dtype, device=device)
    lse = torch.empty((tokens if return_lse else 0, heads), dtype=torch.float32, device=device)
    if len(tiles) * key_heads * chunks == 0:
        return out.to(query.dtype), lse
    part, part_lse = out, lse if return_lse else None
    if splits > 1:
        part = torch.empty((splits, tokens, heads, value_size), dtype=torch.float32, device=device)
        part_lse = torch.empty((splits, tokens, heads), dtype=torch.float32, device=device)
    tree_attention_kernel[(len(tiles), key_heads * chunks, splits)](
        query,
        key,
        value,
        part,
        part_lse,
        subtree_end,
        query_node,
        query_positions,
        key_positions,
        tiles,
        block_start,
        block_stop,
        tokens,
        splits,
        groups,
        scale,
        scale * _LOG2_E if softcap is None else _LOG2_E,
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
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_D=max(triton.next_power_of_2(size), 16),
        BLOCK_DV=max(triton.next_power_of_2(value_size), 16),
        num_warps=num_warps,
        num_stages=num_stages,
        maxnreg=max_registers,
        enable_fp_fusion=True,
    )
    if splits > 1 and part_lse is not None:
        merge_stack_triton(part, part_lse, out, lse if return_lse else None)
    return out.to(query.dtype), lse


@_run.register_fake
def _fake(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return_lse = others[-4]
    tokens, heads, _ = query.shape
    out = query.new_empty((tokens, heads, value.shape[2]))
    return out, query.new_empty((tokens if return_lse else 0, heads), dtype=torch.float32)
