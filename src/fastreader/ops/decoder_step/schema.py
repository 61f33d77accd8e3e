"""The op of the C++ kernel (csrc/decoder_step.cpp) and its fake."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fastreader.ops.library import define


@define(
    "decoder_step_(Tensor(a!) stream, Tensor[] norms, float epsilon, Tensor[] packed, Tensor?[] biases, "
    "Tensor[] head_norms, float head_epsilon, Tensor? cosine, Tensor? sine, int[] rotates, int heads, int key_heads, "
    "int size, int inner, str activation, Tensor[] keys, Tensor[] values, Tensor(b!)[] new_keys, "
    "Tensor(c!)[] new_values, Tensor slots, Tensor[] ranges, int[] ranges_of, float scale, float? softcap, "
    "str? input_precision, str weight_type, str isa) -> ()"
)
def _decoder_step(stream: Tensor, *others: Any) -> None:
    return None
