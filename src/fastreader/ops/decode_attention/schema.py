"""fastreader::decode_attention for torch.library: its signature, and shapes without data.

The CPU kernel is registered by the C++ extension (csrc/decode_attention.cpp).
"""

from __future__ import annotations

import torch
from torch import Tensor

LIBRARY = torch.library.Library("fastreader", "FRAGMENT")  # type: ignore[no-untyped-call]
LIBRARY.define(  # type: ignore[no-untyped-call]
    "decode_attention(Tensor query, Tensor[] keys, Tensor[] values, Tensor row_ptr, Tensor part, Tensor start, "
    "Tensor stop, float scale, float? softcap, str isa) -> (Tensor, Tensor)"
)


@torch.library.register_fake("fastreader::decode_attention", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _fake(
    query: Tensor,
    keys: list[Tensor],
    values: list[Tensor],
    row_ptr: Tensor,
    part: Tensor,
    start: Tensor,
    stop: Tensor,
    scale: float,
    softcap: float | None,
    isa: str,
) -> tuple[Tensor, Tensor]:
    rows, heads, _ = query.shape
    out = query.new_empty((rows, heads, values[0].shape[2]), dtype=torch.float32)
    return out, query.new_empty((rows, heads), dtype=torch.float32)
