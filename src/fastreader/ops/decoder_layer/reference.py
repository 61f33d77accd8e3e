"""decoder_layer_in and decoder_layer_out as their definitions read, in float64, with plain weights."""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.ops.pointwise.reference import gate_reference, rms_norm_reference, rotary_reference, spread

Plain = tuple[Tensor, Tensor | None]  # weight [F, E] and bias [F] or None


def decoder_layer_in_reference(
    stream: Tensor,
    norm: Tensor,
    epsilon: float,
    projections: Plain,
    *,
    heads: int,
    key_heads: int,
    head_norms: tuple[Tensor, Tensor, float] | None = None,
    angles: tuple[Tensor, Tensor] | None = None,
    hadamard: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values for the arguments of `decoder_layer_in`.

    Args:
        head_norms: (query, key, epsilon).
        hadamard: multiply queries and keys by a Hadamard matrix, as for the precision "bf16".
    """
    projected = _linear(rms_norm_reference(stream.double(), norm, epsilon), projections)
    size = projected.shape[1] // (heads + 2 * key_heads)
    query, key, value = torch.split(projected, [heads * size, key_heads * size, key_heads * size], dim=1)
    if head_norms is not None:
        weights, head_epsilon = head_norms[:2], head_norms[2]
        query, key = (
            rms_norm_reference(x.reshape(len(x), x.shape[1] // len(w), len(w)), w, head_epsilon).flatten(1)
            for x, w in zip((query, key), weights, strict=True)
        )
    query, key, value = (x.reshape(len(x), x.shape[1] // size, size) for x in (query, key, value))
    if angles is not None:
        query, key = rotary_reference(query, *angles), rotary_reference(key, *angles)
    if hadamard:
        query, key = spread(query), spread(key)
    return query, key, value


def decoder_layer_out_reference(
    stream: Tensor,
    attended: Tensor,
    out: Plain,
    *,
    norm: Tensor,
    epsilon: float,
    inner: Plain,
    activation: str,
    down: Plain,
) -> Tensor:
    """Return the stream after the layer, for the arguments of `decoder_layer_out`."""
    stream = stream.double() + _linear(attended, out)
    gates, up = _linear(rms_norm_reference(stream, norm, epsilon), inner).chunk(2, dim=1)
    return stream + _linear(gate_reference(gates, up, activation), down)


def _linear(input: Tensor, layer: Plain) -> Tensor:
    weight, bias = layer
    return torch.nn.functional.linear(input.double(), weight.double(), None if bias is None else bias.double())
