"""The ops of the C++ kernels (csrc/pointwise.cpp) and their fakes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastreader.ops.library import define


@define("rms_norm(Tensor input, Tensor weight, float epsilon, bool to_bf16, str isa) -> Tensor")
@define("rotary(Tensor input, Tensor cosine, Tensor sine, bool to_bf16, str isa) -> Tensor")
@define("gate(Tensor gate, Tensor up, str activation, bool to_bf16, str isa) -> Tensor")
def _fake(input: Tensor, *others: Any) -> Tensor:
    to_bf16 = others[-2]
    return input.new_empty(input.shape, dtype=torch.bfloat16 if to_bf16 else torch.float32)
