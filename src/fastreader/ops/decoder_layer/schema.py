"""The ops of the C++ kernels (csrc/decoder_layer.cpp) and their fakes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastreader.ops.library import define


@define(
    "decoder_layer_in(Tensor stream, Tensor norm, float epsilon, Tensor packed, Tensor? bias, Tensor? query_norm, "
    "Tensor? key_norm, float head_epsilon, Tensor? cosine, Tensor? sine, int heads, int key_heads, int size, "
    "bool to_bf16, str? input_precision, str weight_type, str isa) -> (Tensor, Tensor, Tensor)"
)
def _in(stream: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    heads, key_heads, size, to_bf16 = others[9:13]
    dtype, counts = torch.bfloat16 if to_bf16 else torch.float32, (heads, key_heads, key_heads)
    query, key, value = (stream.new_empty((stream.shape[0], count, size), dtype=dtype) for count in counts)
    return query, key, value


@define(
    "decoder_layer_out_(Tensor(a!) stream, Tensor attended, Tensor out_packed, Tensor? out_bias, Tensor norm, "
    "float epsilon, Tensor inner_packed, int inner, Tensor? inner_bias, str activation, Tensor down_packed, "
    "Tensor? down_bias, str? input_precision, str weight_type, str isa) -> ()"
)
def _out(stream: Tensor, *others: Any) -> None:
    return None
