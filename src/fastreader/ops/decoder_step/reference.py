"""decoder_step as its definition reads, in float64, with plain weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastreader.ops.decode_attention.reference import decode_attention_reference
from fastreader.ops.decoder_layer.reference import Plain, decoder_layer_in_reference, decoder_layer_out_reference
from fastreader.ops.decoder_step.api import Shape, StepKeys


@dataclass(frozen=True, eq=False)
class PlainLayer:
    """A `Layer` with plain weights, and head norms as (query, key, epsilon)."""

    first: Tensor
    second: Tensor
    projections: Plain
    head_norms: tuple[Tensor, Tensor, float] | None
    out: Plain
    inner: Plain
    down: Plain
    rotates: bool = True


def decoder_step_reference(
    stream: Tensor, layers: Sequence[PlainLayer], shape: Shape, angles: tuple[Tensor, Tensor] | None, keys: StepKeys
) -> Tensor:
    """Return the stream after the layers, and write keys and values of the new token in the type of `keys`."""
    stream = stream.double()
    for i, layer in enumerate(layers):
        query, key, value = decoder_layer_in_reference(
            stream,
            layer.first,
            shape.epsilon,
            layer.projections,
            heads=shape.heads,
            key_heads=shape.key_heads,
            head_norms=layer.head_norms,
            angles=angles if layer.rotates else None,
            hadamard=keys.new_keys[i].dtype == torch.bfloat16,
        )
        keys.new_keys[i][keys.slots] = key.to(keys.new_keys[i].dtype)
        keys.new_values[i][keys.slots] = value.to(keys.new_values[i].dtype)
        seen_keys = [part.double() for part in (keys.keys[i], keys.new_keys[i])]
        seen_values = [part.double() for part in (keys.values[i], keys.new_values[i])]
        ranges = keys.ranges[keys.ranges_of[i]]
        attended, _ = decode_attention_reference(query, seen_keys, seen_values, ranges, shape.scale, shape.softcap)
        stream = decoder_layer_out_reference(
            stream,
            attended.flatten(1),
            layer.out,
            norm=layer.second,
            epsilon=shape.epsilon,
            inner=layer.inner,
            activation=shape.activation,
            down=layer.down,
        )
    return stream
