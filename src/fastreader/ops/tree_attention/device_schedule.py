"""The schedule of a call of the Triton kernel, and its tables on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fastreader.ops.tree_attention.plan import AttentionContext, AttentionPlan
from fastreader.ops.tree_attention.schedule import Int32, Schedule
from fastreader.ops.tree_attention.triton_config import TreeAttentionConfig, default_config
from fastreader.ops.triton_support import target_of
from fastreader.ops.upload import Upload

_LAST_TILES = 264  # two for each processor of an H100


class CallShape(NamedTuple):
    """Properties of a call that decide its schedule, given its tree.

    Attributes:
        heads, key_heads, size, value_size, dtype: sizes and type of the operands [T, H, D].
        window: see `tree_attention`.
        terms: whether there are sinks or slopes.
        capped: whether there is a soft cap.
        split: whether float32 operands may be sums of two bfloat16 terms.
    """

    heads: int
    key_heads: int
    size: int
    value_size: int
    dtype: torch.dtype
    window: int | None
    terms: bool
    capped: bool
    split: bool

    @classmethod
    def of(cls, context: AttentionContext) -> CallShape:
        """Return the shape of a call."""
        (_, heads, size), (_, key_heads, value_size) = context.query.shape, context.value.shape
        return cls(
            heads=heads,
            key_heads=key_heads,
            size=size,
            value_size=value_size,
            dtype=context.query.dtype,
            window=context.window,
            terms=context.sinks is not None or context.slopes is not None,
            capped=context.softcap is not None,
            split=context.input_precision is not None,
        )

    def config(self, device: torch.device, queries: int) -> TreeAttentionConfig:
        """Return the pinned configuration for this many queries."""
        rows = queries * max(self.heads // max(self.key_heads, 1), 1)
        plain = self.window is None and not self.capped and self.size == self.value_size
        size = max(self.size, self.value_size)
        target, terms, split = target_of(device), self.terms, self.split
        return default_config(target, size, self.dtype, rows, terms=terms, plain=plain, split=split)

    def schedule(
        self, plan: AttentionPlan, device: torch.device, config: TreeAttentionConfig | None = None
    ) -> Schedule:
        """Return the schedule of a plan for such calls, made once."""
        config = config or self.config(device, len(plan.query_node))
        packed, _ = pack_heads(max(self.heads // max(self.key_heads, 1), 1), config.block_m)
        return plan.schedule(self.window, config.block_m // packed, config.block_n)


class DeviceSchedule(NamedTuple):
    """A schedule on a device.

    Attributes:
        tiles: int32 [tiles, 6]: first token, end token, first block, first limited block, first general block, end
            block. Tiles come in the order of their tokens, so that those that run at a time share keys. Of the last
            ones, those with most blocks come first, so that no long tile starts last.
        block_start: int32 [blocks + 1]; of each tile the whole blocks come first, which every query sees, then the
            limited ones, of which a query sees the keys up to its node, then the others; one element of padding.
        block_stop: int32 [blocks + 1].
        longest: number of blocks of the longest tile.
    """

    tiles: Tensor
    block_start: Tensor
    block_stop: Tensor
    longest: int


_OnDevice = dict[torch.device, DeviceSchedule | Callable[[], DeviceSchedule]]
_ON_DEVICE: WeakKeyDictionary[Schedule, _OnDevice] = WeakKeyDictionary()


def device_schedule(schedule: Schedule, device: torch.device) -> DeviceSchedule:
    """Return the schedule on the device, kept as long as the schedule itself, since every layer uses it."""
    found = _ON_DEVICE.get(schedule, {}).get(device) or add_schedule(schedule, Upload(device))
    return found if isinstance(found, DeviceSchedule) else found()


def add_schedule(schedule: Schedule, upload: Upload) -> Callable[[], DeviceSchedule]:
    """Add a schedule's tables to an upload, from which its first use takes them."""
    *arrays, longest = _tables(schedule)
    parts = [upload.add(array, varies=True) for array in arrays]
    by_device = _ON_DEVICE.setdefault(schedule, {})

    def keep() -> DeviceSchedule:
        tiles, block_start, block_stop = (part.get() for part in parts)
        by_device[upload.device] = tables = DeviceSchedule(tiles, block_start, block_stop, longest)
        return tables

    by_device[upload.device] = keep
    return keep


def _tables(schedule: Schedule) -> tuple[Int32, Int32, Int32, int]:
    counts = np.diff(schedule.block_ptr)
    tile = np.repeat(np.arange(len(counts)), counts)
    whole = schedule.block_full & (schedule.block_stop - schedule.block_start == schedule.key_block)
    kind = np.where(whole, 0, np.where(schedule.block_limited, 1, 2))
    order = np.lexsort((kind, tile))  # stable: ascending keys within each run
    first = schedule.block_ptr[:-1]
    firsts = [first + np.bincount(tile[kind < least], minlength=len(counts)) for least in (1, 2)]
    tiles = np.stack([schedule.tile_start, schedule.tile_stop, first, *firsts, schedule.block_ptr[1:]], axis=1)
    last = max(len(tiles) - _LAST_TILES, 0)
    places = np.concatenate([np.arange(last), last + np.argsort(-counts[last:], kind="stable")])
    tiles = tiles[places].astype(np.int32)
    padded = [np.append(a[order], 0).astype(np.int32) for a in (schedule.block_start, schedule.block_stop)]
    return tiles, padded[0], padded[1], int(counts.max(initial=0))


def pack_heads(groups: int, block_m: int) -> tuple[int, int]:
    """Return how the query heads of a key head become rows: (heads packed in a tile, tiles per stretch of tokens)."""
    chunks = -(-groups // block_m)
    return -(-groups // chunks), chunks
