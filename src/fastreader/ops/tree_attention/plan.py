"""AttentionPlan: everything about a tree that attention works out once and every layer uses again."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from fastreader.errors import InputError
from fastreader.ops.tree_attention.schedule import Schedule, make_schedule
from fastreader.ops.tree_attention.slots import Slots, make_slot_schedule
from fastreader.ops.tree_attention.tiles import Tiles, cut_tiles


class AttentionPlan:
    """The structure of one tree for `tree_attention`, its derived tables made on first use and kept.

    Args:
        subtree_end: int32 [Tk], one past the last descendant of each key.
        query_node: int64 [Tq], the key index in whose place each query stands; query i in place i when None.
        query_positions: int32 [Tq], depth of each query; needed for schedules with a window.
        key_positions: int32 [Tk], depth of each key; needed for schedules with a window.
    """

    def __init__(
        self,
        subtree_end: npt.NDArray[np.int32],
        query_node: npt.NDArray[np.int64] | None = None,
        query_positions: npt.NDArray[np.int32] | None = None,
        key_positions: npt.NDArray[np.int32] | None = None,
    ) -> None:
        self.subtree_end = subtree_end
        self.query_node = np.arange(len(subtree_end), dtype=np.int64) if query_node is None else query_node
        self.query_positions = query_positions
        self.key_positions = key_positions
        self._schedules: dict[tuple[int | None, int, int, int], Schedule] = {}
        self._slot_schedules: dict[tuple[int | None, int, int], Schedule] = {}

    @cached_property
    def tiles(self) -> Tiles:
        """Stretches of queries and the keys each can see, for the PyTorch path."""
        return cut_tiles(self.subtree_end, self.query_node)

    def schedule(self, window: int | None, query_block: int, key_block: int, key_align: int = 1) -> Schedule:
        """The block schedule of this tree for tiles of one size, made once; arguments as `make_schedule`.

        Raises:
            InputError: a window, and the plan was made without positions.
        """
        self._check_window(window)
        key = (window, query_block, key_block, key_align)
        if key not in self._schedules:
            self._schedules[key] = make_schedule(
                self.subtree_end,
                self.query_node,
                self.query_positions,
                self.key_positions,
                window,
                query_block=query_block,
                key_block=key_block,
                key_align=key_align,
            )
        return self._schedules[key]

    @cached_property
    def slots(self) -> Slots:
        """Where the C++ kernels keep the keys; needs the extension.

        Raises:
            InputError: `subtree_end` is not of a tree in depth-first order.
        """
        return Slots.of(self.subtree_end)

    def slot_schedule(self, window: int | None, query_block: int, key_block: int) -> Schedule:
        """The schedule of the C++ kernels, its blocks runs of slots; made once, arguments as `make_slot_schedule`.

        Raises:
            InputError: as `schedule` and `slots`.
        """
        self._check_window(window)
        key = (window, query_block, key_block)
        if key not in self._slot_schedules:
            self._slot_schedules[key] = make_slot_schedule(
                self.slots,
                self.subtree_end,
                self.query_node,
                self.query_positions,
                self.key_positions,
                window,
                query_block=query_block,
                key_block=key_block,
            )
        return self._slot_schedules[key]

    def _check_window(self, window: int | None) -> None:
        if window is not None and (self.query_positions is None or self.key_positions is None):
            raise InputError("AttentionPlan.schedule: a window needs query_positions and key_positions, got None")
