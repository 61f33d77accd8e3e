"""PassTables: all tables of a pass, copied to the device together before its first layer."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fastreader.ops import triton_support
from fastreader.ops.tree_attention import AttentionPlan
from fastreader.ops.tree_attention.device_schedule import CallShape, add_schedule
from fastreader.ops.upload import Array, Upload

# Of each call of attention: its shape, and whether its window is a chunk.
Shapes = dict[tuple[CallShape, bool], None]


class PassTables:
    """What a pass sends to the device, schedules of attention included.

    The shapes of a model's attention calls are known from its first pass on; a schedule that was not foreseen is
    copied when it is first used.

    Args:
        shapes: of earlier passes, to which this one adds its own; None to foresee no schedule.
        upload: what takes the tables to the device; None for a separate one.

    Attributes:
        scheduled: whether the device's kernels take schedules, which are then added and noted.
    """

    def __init__(self, device: torch.device, shapes: Shapes | None = None, upload: Upload | None = None) -> None:
        self.upload = upload or Upload(device)
        self._shapes: Shapes = {} if shapes is None else shapes
        self.scheduled = triton_support.on_gpu(device)

    def add_schedules(self, plan: AttentionPlan) -> Array:
        """Add a plan's schedules for the known shapes, and return the nodes of its queries as the kernels take them."""
        if len(plan.query_node):
            for shape, chunked in self._shapes:
                used = plan.chunked(shape.window) if chunked and shape.window is not None else plan
                add_schedule(shape.schedule(used, self.upload.device), self.upload)
        return plan.query_node.astype(np.int32)

    def note(
        self,
        query: Tensor,
        value: Tensor,
        window: int | None,
        *,
        chunked: bool,
        terms: bool,
        capped: bool,
        split: bool,
    ) -> None:
        """Remember the shape of a call, [Tq, Hq, D] and [Tk, Hk, Dv]."""
        sizes = (*query.shape[1:], *value.shape[1:])
        shape = CallShape(sizes[0], sizes[2], sizes[1], sizes[3], query.dtype, window, terms, capped, split)
        self._shapes[shape, chunked] = None
