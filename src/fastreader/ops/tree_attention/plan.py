"""AttentionPlan: everything about a tree that attention works out once and every layer uses again."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from fastreader.ops.tree_attention.tiles import Tiles, cut_tiles


class AttentionPlan:
    """The structure of one tree for `tree_attention`, its derived tables made on first use and kept.

    Args:
        until: int32 [Tk], one past the last descendant of each key.
        anchor: int64 [Tq], the key index in whose place each query stands; query i in place i when None.
    """

    def __init__(self, until: npt.NDArray[np.int32], anchor: npt.NDArray[np.int64] | None = None) -> None:
        self.until = until
        self.anchor = np.arange(len(until), dtype=np.int64) if anchor is None else anchor

    @cached_property
    def tiles(self) -> Tiles:
        """Stretches of queries and the keys each can see, for the PyTorch path."""
        return cut_tiles(self.until, self.anchor)
