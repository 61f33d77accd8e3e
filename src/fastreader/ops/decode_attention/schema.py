"""The op of the C++ kernel (csrc/decode_attention.cpp) and its fake."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastreader.ops.library import define


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
