"""fastreader::rms_norm, rotary and gate for torch.library: signatures, and shapes without data.

The CPU kernels are registered by the C++ extension (csrc/pointwise.cpp).
"""

from __future__ import annotations

import torch
from torch import Tensor

LIBRARY = torch.library.Library("fastreader", "FRAGMENT")  # type: ignore[no-untyped-call]
for signature in (
    "rms_norm(Tensor input, Tensor weight, float epsilon, bool to_bf16, str isa) -> Tensor",
    "rotary(Tensor input, Tensor cosine, Tensor sine, bool to_bf16, str isa) -> Tensor",
    "gate(Tensor gate, Tensor up, str activation, bool to_bf16, str isa) -> Tensor",
):
    LIBRARY.define(signature)  # type: ignore[no-untyped-call]


@torch.library.register_fake("fastreader::rms_norm", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _rms_norm(input: Tensor, weight: Tensor, epsilon: float, to_bf16: bool, isa: str) -> Tensor:
    return input.new_empty(input.shape, dtype=torch.bfloat16 if to_bf16 else torch.float32)


@torch.library.register_fake("fastreader::rotary", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _rotary(input: Tensor, cosine: Tensor, sine: Tensor, to_bf16: bool, isa: str) -> Tensor:
    return input.new_empty(input.shape, dtype=torch.bfloat16 if to_bf16 else torch.float32)


@torch.library.register_fake("fastreader::gate", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _gate(gate: Tensor, up: Tensor, activation: str, to_bf16: bool, isa: str) -> Tensor:
    return gate.new_empty(gate.shape, dtype=torch.bfloat16 if to_bf16 else torch.float32)
