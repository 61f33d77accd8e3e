"""decoder_layer_in and decoder_layer_out: what a decoder layer does to its tokens before and after attention, on the CPU.

They give the bits of `rms_norm`, `linear`, `rotary`, `linear_add` and `linear_gated` in turn (`fastreader.models.fused`
does that elsewhere); a block of rows goes through all of them in one thread, so that no thread waits for another
between two products and values stay in its caches. The threads share the products of few rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastreader.errors import InputError
from fastreader.ops import extension
from fastreader.ops.decoder_layer import schema as _schema  # noqa: F401  (defines the ops)
from fastreader.ops.extension import Serving
from fastreader.ops.linear import PackedWeight
from fastreader.ops.linear.cpu import GATE_MULTIPLE
from fastreader.ops.pointwise import ACTIVATIONS


@dataclass(frozen=True)
class Weight:
    """A linear layer: packed weight [F, E], and its bias [F] or None."""

    packed: PackedWeight
    bias: Tensor | None


@dataclass(frozen=True)
class HeadNorms:
    """Root-mean-square norms of queries and keys: weights of one head, [D], or of all, [H * D]."""

    query: Tensor
    key: Tensor
    epsilon: float


def why_not(stream: Tensor, *weights: Weight) -> str | None:
    """Why these ops cannot take the stream and weights; None when they can."""
    missing = extension.why_missing()
    if missing is not None:
        return missing
    if stream.device.type != "cpu" or stream.dtype != torch.float32 or stream.stride(-1) != 1:
        return f"the C++ kernels take float32 rows on the CPU, got {stream.dtype} on {stream.device}"
    first = weights[0].packed
    if any(
        (w.packed.precision, w.packed.bf16, w.packed.isa) != (first.precision, first.bf16, first.isa) for w in weights
    ):
        return "the weights are packed in different ways"
    return None


def status() -> list[Serving]:
    """Where these ops run, and what runs elsewhere."""
    missing = extension.why_missing()
    if missing:
        return [Serving("cpu (fast, high)", "the ops it is made of", missing)]
    best = f"C++ kernels, {extension.best_instruction_set()}"
    return [
        Serving("cpu (fast, high)", "cpu", best),
        Serving("exact, and other devices", "the ops it is made of", "no kernel takes them"),
    ]


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
    """Norm, joined projections, norms of heads, rotary embedding.

    Args:
        stream: [T, E], float32.
        norm: [E], weight of the norm, float32.
        epsilon: of the norm.
        projections: [(Hq + 2 Hk) * D, E], queries' rows first, then keys', then values'.
        heads, key_heads: Hq and Hk.
        head_norms: norms of queries and keys, or None.
        angles: cosine and sine, [T, R] each, float32; None for no rotary embedding.

    Returns:
        Queries [T, Hq, D], keys and values [T, Hk, D]; bfloat16 where the precision is "fast", else float32.

    Raises:
        InputError: the projections do not fit the heads.
    """
    weight = projections.packed
    size, rest = divmod(weight.width, heads + 2 * key_heads)
    if rest or weight.depth != stream.shape[1]:
        raise InputError(
            f"decoder_layer_in: projections must be [({heads} + 2 * {key_heads}) * D, {stream.shape[1]}], "
            f"got [{weight.width}, {weight.depth}]"
        )
    cosine, sine = (None, None) if angles is None else angles
    query, key, value = torch.ops.fastreader.decoder_layer_in(
        stream,
        norm,
        epsilon,
        weight.data,
        projections.bias,
        None if head_norms is None else head_norms.query,
        None if head_norms is None else head_norms.key,
        0.0 if head_norms is None else head_norms.epsilon,
        cosine,
        sine,
        heads,
        key_heads,
        size,
        weight.precision == "fast",
        weight.precision == "high",
        weight.bf16,
        weight.isa,
    )
    return query, key, value


def decoder_layer_out(
    stream: Tensor,
    attended: Tensor,
    out: Weight,
    norm: Tensor,
    epsilon: float,
    inner: Weight,
    activation: str,
    down: Weight,
) -> None:
    """Add attention's output projection to the stream, then the gated feed-forward of its norm; in place.

    Args:
        stream: [T, E], float32, overwritten.
        attended: [T, Hq * D], float32 or bfloat16.
        out: [E, Hq * D].
        norm, epsilon: of the norm between the two, weight [E] in float32.
        inner: [2 F, E], the gate's rows first; F a multiple of 32.
        activation: one of `fastreader.ops.pointwise.ACTIVATIONS`.
        down: [E, F].

    Raises:
        InputError: sizes do not fit, or an unknown activation.
    """
    rows, hidden = stream.shape
    wanted = {
        "out": (out.packed, hidden, attended.shape[1]),
        "inner": (inner.packed, 2 * down.packed.depth, hidden),
        "down": (down.packed, hidden, inner.packed.width // 2),
    }
    for name, (packed, width, depth) in wanted.items():
        if (packed.width, packed.depth) != (width, depth):
            raise InputError(f"decoder_layer_out: {name} must be [{width}, {depth}], got [{packed.width}, {packed.depth}]")
    kinds = [(p.precision, p.bf16, p.isa) for p in (out.packed, inner.packed, down.packed)]
    if len(set(kinds)) > 1:
        raise InputError(f"decoder_layer_out: expected weights packed alike, got {', '.join(map(str, kinds))}")
    if len(attended) != rows:
        raise InputError(f"decoder_layer_out: attended must have {rows} rows like stream, got {len(attended)}")
    if inner.packed.width % GATE_MULTIPLE:
        raise InputError(f"decoder_layer_out: inner must have a multiple of {GATE_MULTIPLE} rows, got {inner.packed.width}")
    if activation not in ACTIVATIONS:
        raise InputError(f"decoder_layer_out: activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    torch.ops.fastreader.decoder_layer_out_(
        stream,
        attended,
        out.packed.data,
        out.bias,
        norm,
        epsilon,
        inner.packed.data,
        down.packed.depth,
        inner.bias,
        activation,
        down.packed.data,
        down.bias,
        out.packed.precision == "high",
        out.packed.bf16,
        out.packed.isa,
    )
