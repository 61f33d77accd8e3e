"""fastreader::linear for torch.library: its signature, and shapes without data.

The CPU kernel is registered by the C++ extension (csrc/linear.cpp).
"""

from __future__ import annotations

import torch
from torch import Tensor

LIBRARY = torch.library.Library("fastreader", "FRAGMENT")  # type: ignore[no-untyped-call]
LIBRARY.define(  # type: ignore[no-untyped-call]
    "linear(Tensor input, Tensor weight, Tensor? bias, bool split, str isa) -> Tensor"
)


@torch.library.register_fake("fastreader::linear", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _fake(input: Tensor, weight: Tensor, bias: Tensor | None, split: bool, isa: str) -> Tensor:
    return input.new_empty((input.shape[0], weight.shape[0]))
