"""fastreader::linear for torch.library: its signature, and shapes without data.

The CPU kernel is registered by the C++ extension (csrc/linear.cpp).
"""

from __future__ import annotations

import torch
from torch import Tensor

LIBRARY = torch.library.Library("fastreader", "FRAGMENT")  # type: ignore[no-untyped-call]
LIBRARY.define("linear_pack(Tensor weight, bool split, str isa) -> Tensor")  # type: ignore[no-untyped-call]
LIBRARY.define(  # type: ignore[no-untyped-call]
    "linear(Tensor input, Tensor packed, int width, Tensor? bias, bool split, bool bf16_weight, str isa) -> Tensor"
)


@torch.library.register_fake("fastreader::linear", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _fake(
    input: Tensor, packed: Tensor, width: int, bias: Tensor | None, split: bool, bf16_weight: bool, isa: str
) -> Tensor:
    return input.new_empty((input.shape[0], width))
