"""Ranges: the keys that each row sees, as a few stretches."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.core.checks import expect

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Ranges:
    """Row b sees the keys ``start[r]:stop[r]`` of part ``part[r]`` for each r in ``row_ptr[b]:row_ptr[b + 1]``.

    The arrays must not change, since all layers of a pass use them and they are checked once.

    Attributes:
        row_ptr: int32 [B + 1], ascending from 0.
        part: int32 [n], index of the key tensor; the ranges of a row do not overlap.
        start, stop: int32 [n]; a range is empty unless start < stop.
        offset: int32 [n], position of each range's first key less that of the row's query, for slopes; positions rise
            by one inside a range. None without slopes.
    """

    row_ptr: Int32
    part: Int32
    start: Int32
    stop: Int32
    offset: Int32 | None = None
    _checked: tuple[tuple[int, ...], tuple[Tensor, ...]] | None = field(default=None, init=False, repr=False)

    def tensors(self, rows: int, lengths: list[int]) -> tuple[Tensor, ...]:
        """Return copies of the arrays, those of `offset` only if it is set.

        Raises:
            InputError: if the ranges do not fit `rows` rows over parts of these lengths.
        """
        if self._checked is None or self._checked[0] != (rows, *lengths):
            self._check(rows, lengths)
            arrays = self.row_ptr, self.part, self.start, self.stop, self.offset
            copies = (array.copy() for array in arrays if array is not None)
            object.__setattr__(self, "_checked", ((rows, *lengths), tuple(map(torch.from_numpy, copies))))
        assert self._checked is not None
        return self._checked[1]

    def _check(self, rows: int, lengths: list[int]) -> None:
        count = len(self.part)
        for name, length in (("row_ptr", rows + 1), *((name, count) for name in ("part", "start", "stop", "offset"))):
            array = getattr(self, name)
            if array is None:  # no offsets
                continue
            if array.dtype != np.int32 or array.shape != (length,):
                _expect(False, name, f"int32 [{length}]", f"{array.dtype} {list(array.shape)}")
        ascends = self.row_ptr[0] == 0 and self.row_ptr[-1] == count and (np.diff(self.row_ptr) >= 0).all()
        _expect(ascends, "row_ptr", f"values that ascend from 0 to {count}", self.row_ptr)
        if count == 0:
            return
        _expect(self.part.min() >= 0 and self.part.max() < len(lengths), "part", f"in [0, {len(lengths)})", self.part)
        inside = self.start.min() >= 0 and (self.stop <= np.asarray(lengths)[self.part]).all()
        _expect(inside, "start, stop", f"inside parts of {lengths} keys", (self.start, self.stop))


def _expect(condition: object, name: str, expected: str, value: object) -> None:
    expect(bool(condition), f"decode_attention: ranges.{name}", expected, value)
