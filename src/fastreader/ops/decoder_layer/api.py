"""decoder_layer_in and decoder_layer_out: the work of a decoder layer before and after attention, on the CPU.

They give the bits of `rms_norm`, `linear`, `rotary`, `linear_add` and `linear_gated` one after the other, which
`fastreader.models.rewriting.fused` calls elsewhere. A block of rows goes through all of them in one thread, so that no
thread waits for another between two products and values stay in its caches. With few rows the threads share the
products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastreader.errors import InputError
from fastreader.ops.extension import define
from fastreader.ops.linear import PackedWeight
from fastreader.ops.linear.cpu import GATE_MULTIPLE
from fastreader.ops.operands import check_activation


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


@dataclass(frozen=True)
class Weight:
    """A linear layer: packed weight [F, E], and its bias [F] or None."""

    packed: PackedWeight
    bias: Tensor | None


@dataclass(frozen=True)
class HeadNorms:
    """Root-mean-square norms of queries and keys, with weights of one head, [D], or of all heads, [H * D]."""

    query: Tensor
    key: Tensor
    epsilon: float


def decoder_layer_in(
    stream: Tensor,
    norm: Tensor,
    epsilon: float,
    projections: Weight,
    *,
    heads: int,
    key_heads: int,
    head_norms: HeadNorms | None = None,
    angles: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute norm, joined projections, norms of heads and rotary embedding.

    Args:
        stream: [T, E], float32 of contiguous rows.
        norm, epsilon: of the norm, weight [E] in float32.
        projections: [(Hq + 2 Hk) * D, E], the rows of queries, then keys, then values.
        heads, key_heads: Hq and Hk.
        head_norms: norms of queries and keys, or None.
        angles: cosine and sine, [T, R] each, float32; None for no rotary embedding.

    Returns:
        Queries [T, Hq, D], keys and values [T, Hk, D]; float32, or for the precision "bf16" bfloat16, queries and keys
        then multiplied by a Hadamard matrix before they are rounded (`rotary`).

    Raises:
        InputError: if the projections do not fit the heads.
    """
    weight = projections.packed
    size, rest = divmod(weight.width, heads + 2 * key_heads)
    if rest or weight.depth != stream.shape[1]:
        raise InputError(
            f"decoder_layer_in: projections must be [({heads} + 2 * {key_heads}) * D, {stream.shape[1]}], "
            f"got [{weight.width}, {weight.depth}]"
        )
    norms = (None, None, 0.0) if head_norms is None else (head_norms.query, head_norms.key, head_norms.epsilon)
    rotary, shape = angles or (None, None), (heads, key_heads, size, weight.precision == "bf16")
    query, key, value = torch.ops.fastreader.decoder_layer_in(
        stream, norm, epsilon, weight.data, projections.bias, *norms, *rotary, *shape, *weight.layout
    )
    return query, key, value


def decoder_layer_out(
    stream: Tensor,
    attended: Tensor,
    out: Weight,
    *,
    norm: Tensor,
    epsilon: float,
    inner: Weight,
    activation: str,
    down: Weight,
) -> None:
    """Add attention's output projection to the stream, then the gated feed-forward of its norm, in place.

    Args:
        stream: [T, E], float32 of contiguous rows, overwritten.
        attended: [T, Hq * D], float32 or bfloat16.
        out: [E, Hq * D].
        norm, epsilon: of the norm between the two, weight [E] in float32.
        inner: [2 F, E], the gate's rows first; F is a multiple of 32.
        activation: one of `fastreader.ops.pointwise.ACTIVATIONS`.
        down: [E, F].

    Raises:
        InputError: if sizes do not fit, or the activation is unknown.
    """
    rows, hidden = stream.shape
    wanted = {
        "out": (out.packed, hidden, attended.shape[1]),
        "inner": (inner.packed, 2 * down.packed.depth, hidden),
        "down": (down.packed, hidden, inner.packed.width // 2),
    }
    for name, (packed, width, depth) in wanted.items():
        if (packed.width, packed.depth) != (width, depth):
            raise InputError(
                f"decoder_layer_out: {name} must be [{width}, {depth}], got [{packed.width}, {packed.depth}]"
            )
    layouts = out.packed.layout, inner.packed.layout, down.packed.layout
    if len(set(layouts)) > 1:
        raise InputError(f"decoder_layer_out: expected weights packed alike, got {', '.join(map(str, layouts))}")
    if len(attended) != rows:
        raise InputError(f"decoder_layer_out: attended must have {rows} rows like stream, got {len(attended)}")
    if inner.packed.width % GATE_MULTIPLE:
        raise InputError(
            f"decoder_layer_out: rows of inner must be a multiple of {GATE_MULTIPLE}, got {inner.packed.width}"
        )
    check_activation("decoder_layer_out", activation)
    before = stream, attended, out.packed.data, out.bias, norm, epsilon
    after = inner.packed.data, down.packed.depth, inner.bias, activation, down.packed.data, down.bias
    torch.ops.fastreader.decoder_layer_out_(*before, *after, *out.packed.layout)
