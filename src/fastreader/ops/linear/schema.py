"""The ops of the C++ kernels (csrc/linear.cpp) and their fakes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastreader.ops.library import LIBRARY, define

_LAYOUT = "str? input_precision, str weight_type, str isa"  # of a packed weight
LIBRARY.define("linear_pack(Tensor weight, str? input_precision, str isa) -> Tensor")  # type: ignore[no-untyped-call]


@define(f"linear(Tensor input, Tensor packed, int width, Tensor? bias, {_LAYOUT}) -> Tensor")
def _linear(input: Tensor, packed: Tensor, width: int, *others: Any) -> Tensor:
    return input.new_empty((input.shape[0], width), dtype=torch.float32)


@define(f"linear_add_(Tensor(a!) sum, Tensor input, Tensor packed, Tensor? bias, {_LAYOUT}) -> ()")
def _linear_add(sum: Tensor, *others: Any) -> None:
    return None


@define(
    "linear_gated(Tensor input, Tensor packed, int width, Tensor? bias, str activation, bool to_bf16, "
    f"{_LAYOUT}) -> Tensor"
)
def _linear_gated(input: Tensor, packed: Tensor, width: int, *others: Any) -> Tensor:
    to_bf16 = others[2]
    return input.new_empty((input.shape[0], width // 2), dtype=torch.bfloat16 if to_bf16 else torch.float32)
