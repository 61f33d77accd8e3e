"""fastreader::decoder_layer_in and decoder_layer_out_ for torch.library: signatures, and shapes without data.

The CPU kernels are registered by the C++ extension (csrc/decoder_layer.cpp).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LIBRARY = torch.library.Library("fastreader", "FRAGMENT")  # type: ignore[no-untyped-call]
for signature in (
    "decoder_layer_in(Tensor stream, Tensor norm, float epsilon, Tensor packed, Tensor? bias, Tensor? query_norm, "
    "Tensor? key_norm, float head_epsilon, Tensor? cosine, Tensor? sine, int heads, int key_heads, int size, "
    "bool to_bf16, bool split, bool bf16_weight, str isa) -> (Tensor, Tensor, Tensor)",
    "decoder_layer_out_(Tensor(a!) stream, Tensor attended, Tensor out_packed, Tensor? out_bias, Tensor norm, float epsilon, "
    "Tensor inner_packed, int inner, Tensor? inner_bias, str activation, Tensor down_packed, Tensor? down_bias, "
    "bool split, bool bf16_weight, str isa) -> ()",
):
    LIBRARY.define(signature)  # type: ignore[no-untyped-call]


@torch.library.register_fake("fastreader::decoder_layer_in", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _layer_in(stream: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    heads, key_heads, size, to_bf16 = others[9:13]
    kind = torch.bfloat16 if to_bf16 else torch.float32
    query, key, value = (
        stream.new_empty((stream.shape[0], count, size), dtype=kind) for count in (heads, key_heads, key_heads)
    )
    return query, key, value


@torch.library.register_fake("fastreader::decoder_layer_out_", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _layer_out(stream: Tensor, *others: Any) -> None:
    return None
