"""The op of the C++ kernel (csrc/recurrent.cpp) and its fake."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fastreader.ops.library import define


@define(
    "scan_chains(Tensor query, Tensor key, Tensor value, Tensor gate, Tensor? beta, Tensor? initial, Tensor chains, "
    "int[] levels, int rows, float scale, float? epsilon, str isa) -> (Tensor, Tensor)"
)
def _scan(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return value.new_empty(value.shape), value.new_empty((others[5], value.shape[1], query.shape[2], value.shape[2]))
