"""RoundedKeyValues: keys and values as integers of 8 bits, with a scale for each token and head."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fastreader.models.passes.key_values import Indices, KeyValues

_LARGEST = 127


@dataclass
class RoundedKeyValues(KeyValues):
    """Keys and values, int8, each vector of a token and head rounded to 255 levels of its largest absolute value.

    Attributes:
        dtype: type of what is taken out.
        key_scales, value_scales: for each layer float32 [T, Hk, 1].
    """

    dtype: torch.dtype = torch.float32
    key_scales: list[Tensor] = field(default_factory=list)
    value_scales: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, exact: KeyValues) -> RoundedKeyValues:
        """Round keys and values, and keep the states as they are."""
        found = cls(tokens=len(exact), states=exact.states)
        for tensors, rounded, scales in (
            (exact.keys, found.keys, found.key_scales),
            (exact.values, found.values, found.value_scales),
        ):
            for tensor in tensors:
                found.dtype = tensor.dtype
                scale = tensor.abs().amax(dim=-1, keepdim=True).float() / _LARGEST
                # A vector of zeros has the scale 0; any divisor keeps it.
                rounded.append((tensor.float() / torch.where(scale > 0, scale, 1.0)).round_().to(torch.int8))
                scales.append(scale)
        return found

    def take(self, layer: int, rows: slice | Indices) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values of some tokens [R, Hk, ...] in `dtype`."""
        at = rows if isinstance(rows, slice) else rows.on(self.keys[layer].device)
        key = self.keys[layer][at] * self.key_scales[layer][at]
        value = self.values[layer][at] * self.value_scales[layer][at]
        return key.to(self.dtype), value.to(self.dtype)

    @property
    def nbytes(self) -> int:
        """Memory of keys and values with their scales, in bytes."""
        return super().nbytes + sum(t.nbytes for t in (*self.key_scales, *self.value_scales))
