"""Ranges: which keys each row sees, as a few stretches of each row's."""

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

    The arrays must not change: all layers of a pass ask for the same, and they are looked at once.

    Attributes:
        row_ptr: int32 [B + 1], ascending from 0.
        part: int32 [n], which of the key tensors; a row's ranges do not overlap.
        start, stop: int32 [n]; a range whose start is not below its stop is empty.
    """

    row_ptr: Int32
    part: Int32
    start: Int32
    stop: Int32
    _found: tuple[tuple[int, ...], tuple[Tensor, ...]] | None = field(default=None, init=False, repr=False)

    def tensors(self, rows: int, lengths: list[int]) -> tuple[Tensor, ...]:
        """The four arrays, checked and copied.

        Raises:
            InputError: as `check`.
        """
        asked = rows, *lengths
        if self._found is None or self._found[0] != asked:
            self.check(rows, lengths)
            arrays = self.row_ptr, self.part, self.start, self.stop
            object.__setattr__(self, "_found", (asked, tuple(torch.from_numpy(a.copy()) for a in arrays)))
        assert self._found is not None
        return self._found[1]

    def check(self, rows: int, lengths: list[int]) -> None:
        """Refuse ranges that do not fit `rows` rows over parts of these lengths.

        Raises:
            InputError: naming what does not fit.
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
