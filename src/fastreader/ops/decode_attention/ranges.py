"""Ranges: the keys that each row sees, as a few stretches."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.errors import InputError

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Ranges:
    """Row b sees the keys ``start[r]:stop[r]`` of part ``part[r]`` for each r in ``row_ptr[b]:row_ptr[b + 1]``.

    The arrays must not change, since all layers of a pass use them and they are checked once.

    Attributes:
        row_ptr: int32 [B + 1], ascending from 0.
        part: int32 [n], index of the key tensor; the ranges of a row do not overlap.
        start, stop: int32 [n]; a range is empty unless start < stop.
    """

    row_ptr: Int32
    part: Int32
    start: Int32
    stop: Int32
    _checked: tuple[tuple[int, ...], tuple[Tensor, ...]] | None = field(default=None, init=False, repr=False)

    def tensors(self, rows: int, lengths: list[int]) -> tuple[Tensor, ...]:
        """Return the four arrays, checked and copied.

        Raises:
            InputError: if `check` raises it.
        """
        sizes = rows, *lengths
        if self._checked is None or self._checked[0] != sizes:
            self.check(rows, lengths)
            arrays = self.row_ptr, self.part, self.start, self.stop
            object.__setattr__(self, "_checked", (sizes, tuple(torch.from_numpy(a.copy()) for a in arrays)))
        assert self._checked is not None
        return self._checked[1]

    def check(self, rows: int, lengths: list[int]) -> None:
        """Check that the ranges fit `rows` rows over parts of these lengths.

        Raises:
            InputError: if an array does not fit.
        """
        for name in ("row_ptr", "part", "start", "stop"):
            array, count = getattr(self, name), len(self.part)
            wanted = rows + 1 if name == "row_ptr" else count
            if array.dtype != np.int32 or array.shape != (wanted,):
                raise InputError(
                    f"decode_attention: ranges.{name} must be int32 [{wanted}], got {array.dtype} {list(array.shape)}"
                )
        if self.row_ptr[0] != 0 or self.row_ptr[-1] != len(self.part) or (np.diff(self.row_ptr) < 0).any():
            raise InputError("decode_attention: ranges.row_ptr must ascend from 0 to the number of ranges")
        if len(self.part) == 0:
            return
        if self.part.min() < 0 or self.part.max() >= len(lengths):
            raise InputError(f"decode_attention: ranges.part must be in [0, {len(lengths)})")
        if self.start.min() < 0 or (self.stop > np.asarray(lengths)[self.part]).any():
            raise InputError("decode_attention: ranges reach past their keys")
