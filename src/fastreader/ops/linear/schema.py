"""fastreader::linear and its kin for torch.library: signatures, and shapes without data.

The CPU kernels are registered by the C++ extension (csrc/linear.cpp).
"""

from __future__ import annotations

import torch
from torch import Tensor

LIBRARY = torch.library.Library("fastreader", "FRAGMENT")  # type: ignore[no-untyped-call]
for signature in (
    "linear_pack(Tensor weight, bool split, str isa) -> Tensor",
    "linear(Tensor input, Tensor packed, int width, Tensor? bias, bool split, bool bf16_weight, str isa) -> Tensor",
    "linear_add_(Tensor(a!) sum, Tensor input, Tensor packed, Tensor? bias, bool split, bool bf16_weight, str isa) "
    "-> ()",
    "linear_gated(Tensor input, Tensor packed, int width, Tensor? bias, str activation, bool to_bf16, bool split, "
    "bool bf16_weight, str isa) -> Tensor",
):
    LIBRARY.define(signature)  # type: ignore[no-untyped-call]


@torch.library.register_fake("fastreader::linear", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _linear(
    input: Tensor, packed: Tensor, width: int, bias: Tensor | None, split: bool, bf16_weight: bool, isa: str
) -> Tensor:
    return input.new_empty((input.shape[0], width), dtype=torch.float32)


@torch.library.register_fake("fastreader::linear_add_", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _linear_add(
    sum: Tensor, input: Tensor, packed: Tensor, bias: Tensor | None, split: bool, bf16_weight: bool, isa: str
) -> None:
    return None


@torch.library.register_fake("fastreader::linear_gated", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _linear_gated(
    input: Tensor,
    packed: Tensor,
    width: int,
    bias: Tensor | None,
    activation: str,
    to_bf16: bool,
    split: bool,
    bf16_weight: bool,
    isa: str,
) -> Tensor:
    return input.new_empty((input.shape[0], width // 2), dtype=torch.bfloat16 if to_bf16 else torch.float32)
