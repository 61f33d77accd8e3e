"""The block schedule as the arrays that the Triton kernel reads."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fastreader.ops.tree_attention.schedule import Schedule


class DeviceSchedule(NamedTuple):
    """A schedule on a device.

    Attributes:
        tiles: int32 [tiles, 5]: first token, end token, first block, first masked block, end block. The tiles
            with most blocks come first, so that no long tile starts last.
        block_start: int32 [blocks + 1], each tile's unmasked blocks first; one element of padding.
        block_stop: int32 [blocks + 1].
        longest: number of blocks of the longest tile.
    """

    tiles: Tensor
    block_start: Tensor
    block_stop: Tensor
    longest: int


_ON_DEVICE: WeakKeyDictionary[Schedule, dict[torch.device, DeviceSchedule]] = WeakKeyDictionary()


def device_schedule(schedule: Schedule, device: torch.device) -> DeviceSchedule:
    """Return the schedule on the device, kept as long as the schedule itself, since every layer uses it."""
    by_device = _ON_DEVICE.setdefault(schedule, {})
    if device not in by_device:
        by_device[device] = _upload(schedule, device)
    return by_device[device]


def _upload(schedule: Schedule, device: torch.device) -> DeviceSchedule:
    counts = np.diff(schedule.block_ptr)
    tile = np.repeat(np.arange(len(counts)), counts)
    whole = schedule.block_full & (schedule.block_stop - schedule.block_start == schedule.key_block)
    order = np.lexsort((~whole, tile))  # stable: ascending keys within each run
    first = schedule.block_ptr[:-1]
    masked = first + np.bincount(tile[whole], minlength=len(counts))
    tiles = np.stack([schedule.tile_start, schedule.tile_stop, first, masked, schedule.block_ptr[1:]], axis=1)
    tiles = tiles[np.argsort(-counts, kind="stable")].astype(np.int32)
    padded = [np.append(a[order], 0).astype(np.int32) for a in (schedule.block_start, schedule.block_stop)]
    longest = int(counts.max(initial=0))
    on_device = [torch.from_numpy(a).to(device) for a in (tiles, *padded)]
    return DeviceSchedule(on_device[0], on_device[1], on_device[2], longest)
