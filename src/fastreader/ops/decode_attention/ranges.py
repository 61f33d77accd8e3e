"""Ranges, the keys that each row sees, as a few stretches, and the op of the C++ kernel (csrc/decode_attention.cpp)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.core.checks import expect
from fastreader.core.lazy import cached_property
from fastreader.ops.extension import define
from fastreader.ops.upload import Upload, Uploaded

Int32 = npt.NDArray[np.int32]
_NAME = "decode_attention: ranges."
_CPU = torch.device("cpu")


@define(
    "decode_attention(Tensor query, Tensor[] keys, Tensor[] values, Tensor row_ptr, Tensor part, Tensor start, "
    "Tensor stop, Tensor? offset, float scale, float? softcap, Tensor? sinks, Tensor? slopes, str isa) "
    "-> (Tensor, Tensor)"
)
def _fake(query: Tensor, keys: list[Tensor], values: list[Tensor], *others: Any) -> tuple[Tensor, Tensor]:
    return empty_results(query, values)


def empty_results(query: Tensor, values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return unset out [B, Hq, Dv] and lse [B, Hq]."""
    rows, heads, _ = query.shape
    out = torch.empty((rows, heads, values[0].shape[2]), dtype=torch.float32, device=query.device)
    return out, torch.empty((rows, heads), dtype=torch.float32, device=query.device)


@dataclass(frozen=True, eq=False)
class Ranges:
    """Row b sees the keys ``start[r]:stop[r]`` of part ``part[r]`` for each r in ``row_ptr[b]:row_ptr[b + 1]``.

    The arrays must not change, since all layers of a pass use them and they are checked once.

    Attributes:
        row_ptr: int32 [B + 1], ascending from 0.
        part: int32 [n], index of the key tensor; the ranges of a row do not overlap.
        start, stop: int32 [n]; a range is empty unless start < stop.
        offset: int32 [n], position of each range's first key less that of the row's query, or from 0 where a call
            gives positions; positions rise by one inside a range. None without slopes and positions.
    """

    row_ptr: Int32
    part: Int32
    start: Int32
    stop: Int32
    offset: Int32 | None = None
    _checked: dict[torch.device, tuple[tuple[int, ...], tuple[Tensor, ...]]] = field(
        default_factory=dict, init=False, repr=False
    )

    @cached_property
    def longest(self) -> int:
        """Largest number of keys in the ranges of a row."""
        counted = np.append(0, np.cumsum(np.maximum(self.stop - self.start, 0)))[self.row_ptr]
        return int(np.diff(counted).max(initial=0))

    def tensors(self, rows: int, lengths: list[int], device: torch.device = _CPU) -> tuple[Tensor, ...]:
        """Return copies of the arrays on a device, that of `offset` only if it is set.

        Raises:
            InputError: if the ranges do not fit `rows` rows over parts of these lengths.
        """
        fitted, tensors = self._checked.get(device, (None, ()))
        if fitted != (rows, *lengths):
            self._check(rows, lengths)
            arrays = [self.row_ptr, self.part, self.start, self.stop]
            if self.offset is not None:
                arrays.append(self.offset)
            copies = list(map(Upload(device).add, map(np.copy, arrays)))
            tensors = tuple(map(Uploaded.get, copies))
            self._checked[device] = (rows, *lengths), tensors
        return tensors

    def _check(self, rows: int, lengths: list[int]) -> None:
        count = len(self.part)
        for name in ("row_ptr", "part", "start", "stop", "offset"):
            array, length = getattr(self, name), rows + 1 if name == "row_ptr" else count
            if array is None:  # no offsets
                continue
            if array.dtype != np.int32 or array.shape != (length,):
                expect(False, _NAME + name, f"int32 [{length}]", f"{array.dtype} {list(array.shape)}")
        ascends = self.row_ptr[0] == 0 and self.row_ptr[-1] == count and (np.diff(self.row_ptr) >= 0).all()
        expect(bool(ascends), _NAME + "row_ptr", f"values that ascend from 0 to {count}", self.row_ptr)
        if count == 0:
            return
        known = self.part.min() >= 0 and self.part.max() < len(lengths)
        expect(bool(known), _NAME + "part", f"in [0, {len(lengths)})", self.part)
        inside = self.start.min() >= 0 and (self.stop <= np.asarray(lengths)[self.part]).all()
        expect(bool(inside), _NAME + "start, stop", f"inside parts of {lengths} keys", (self.start, self.stop))
