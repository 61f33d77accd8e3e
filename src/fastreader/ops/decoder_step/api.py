"""decoder_step: all decoder layers of one decoding step, on the CPU.

It gives the bits of `decoder_layer_in`, `decode_attention` and `decoder_layer_out`. One call a step instead of
three a layer: with small weights Python and the start of threads take longer than the products.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastreader.errors import InputError
from fastreader.ops.decode_attention import Ranges
from fastreader.ops.decoder_layer import HeadNorms, Weight
from fastreader.ops.extension import define
from fastreader.ops.linear.cpu import GATE_MULTIPLE
from fastreader.ops.operands import check_activation


@define(
    "decoder_step_(Tensor(a!) stream, Tensor[] norms, float epsilon, Tensor[] packed, Tensor?[] biases, "
    "Tensor[] head_norms, float head_epsilon, Tensor? cosine, Tensor? sine, int[] rotates, int heads, int key_heads, "
    "int size, int inner, str activation, Tensor[] keys, Tensor[] values, Tensor(b!)[] new_keys, "
    "Tensor(c!)[] new_values, Tensor slots, Tensor[] ranges, int[] ranges_of, float scale, float? softcap, "
    "str? input_precision, str weight_type, str isa) -> ()"
)
def _decoder_step(stream: Tensor, *others: Any) -> None:
    return None


@dataclass(frozen=True, eq=False)
class Layer:
    """A decoder layer with norms before attention and before the gated feed-forward.

    Attributes:
        first, second: the norms' weights [E], float32.
        projections: [(Hq + 2 Hk) * D, E], the rows of queries, then keys, then values.
        head_norms: norms of queries and keys, or None.
        out: [E, Hq * D].
        inner: [2 F, E], the gate's rows first; F is a multiple of 32.
        down: [E, F].
        rotates: whether queries and keys get the rotary embedding.
    """

    first: Tensor
    second: Tensor
    projections: Weight
    head_norms: HeadNorms | None
    out: Weight
    inner: Weight
    down: Weight
    rotates: bool = True


@dataclass(frozen=True)
class Shape:
    """Sizes and constants of all layers: Hq, Hk, the norms' epsilon, the activation, the scores' factor and bound."""

    heads: int
    key_heads: int
    epsilon: float
    activation: str
    scale: float
    softcap: float | None = None


class StackedLayers:
    """Decoder layers as the op takes them: their tensors in lists, which are made once.

    Args:
        layers: in order.
        shape: what they have in common.

    Attributes:
        precision: of the products; "bf16" takes keys and values in bfloat16, the others in float32.

    Raises:
        InputError: if sizes do not fit, weights are packed differently, or only some layers have norms of heads.
    """

    def __init__(self, layers: Sequence[Layer], shape: Shape) -> None:
        if not layers:
            raise InputError("decoder_step: expected at least one layer, got none")
        first = layers[0]
        self.count, self.hidden = len(layers), len(first.first)
        self.size, rest = divmod(first.projections.packed.width, shape.heads + 2 * shape.key_heads)
        inner = first.down.packed.depth
        wide = shape.heads * self.size
        wanted = {
            "projections": (wide + 2 * shape.key_heads * self.size, self.hidden),
            "out": (self.hidden, wide),
            "inner": (2 * inner, self.hidden),
            "down": (self.hidden, inner),
        }
        if rest or first.inner.packed.width % GATE_MULTIPLE:
            raise InputError(
                f"decoder_step: sizes do not fit {shape}: {first.projections.packed}, {first.inner.packed}"
            )
        weights = [(name, getattr(layer, name)) for layer in layers for name in wanted]
        for name, weight in weights:
            got = weight.packed.width, weight.packed.depth
            if got != wanted[name]:
                raise InputError(f"decoder_step: {name} must be {list(wanted[name])}, got {list(got)}")
        layouts = {weight.packed.layout for _, weight in weights}
        norms = {None if layer.head_norms is None else layer.head_norms.epsilon for layer in layers}
        if len(layouts) > 1 or len(norms) > 1:
            raise InputError(f"decoder_step: expected layers alike, got {layouts} and norms of heads {norms}")
        check_activation("decoder_step", shape.activation)
        self.precision = first.projections.packed.precision
        self.rotates = any(layer.rotates for layer in layers)
        head_norms = [norm for layer in layers if (n := layer.head_norms) is not None for norm in (n.query, n.key)]
        biases = [weight.bias for _, weight in weights]
        self.before = (
            [norm for layer in layers for norm in (layer.first, layer.second)],
            shape.epsilon,
            [weight.packed.data for _, weight in weights],
            biases if any(bias is not None for bias in biases) else [],
            head_norms,
            norms.pop() or 0.0,
        )
        self.after = (
            [int(layer.rotates) for layer in layers],
            shape.heads,
            shape.key_heads,
            self.size,
            inner,
            shape.activation,
        )
        self.scores = shape.scale, shape.softcap
        self.layout = layouts.pop()

    def part(self, indices: Sequence[int]) -> StackedLayers:
        """Return some of the layers, in the order of their indices, with the same tensors."""

        def of(values: list[Any]) -> list[Any]:
            each = len(values) // self.count
            return [value for index in indices for value in values[each * index : each * (index + 1)]]

        norms, epsilon, packed, biases, head_norms, head_epsilon = self.before
        made = copy.copy(self)
        made.count = len(indices)
        made.before = of(norms), epsilon, of(packed), of(biases), of(head_norms), head_epsilon
        made.after = of(self.after[0]), *self.after[1:]
        return made


@dataclass(frozen=True, eq=False)
class StepKeys:
    """Keys and values of B rows: part 0 of earlier tokens, part 1 of new tokens, one slot for each.

    Attributes:
        keys, values: for each layer [Tk, Hk, D].
        new_keys, new_values: for each layer [S, Hk, D], contiguous.
        slots: int64 [B], where each row's new key and value go.
        ranges: the keys that each row sees, the new one included; one for each window.
        ranges_of: for each layer, the index of its ranges.
    """

    keys: list[Tensor]
    values: list[Tensor]
    new_keys: list[Tensor]
    new_values: list[Tensor]
    slots: Tensor
    ranges: list[Ranges]
    ranges_of: list[int]


def decoder_step(stream: Tensor, layers: StackedLayers, angles: tuple[Tensor, Tensor] | None, keys: StepKeys) -> None:
    """Run the layers over the newest token of B rows, and write its keys and values.

    Args:
        stream: [B, E], float32 of contiguous rows, overwritten.
        layers: the layers.
        angles: cosine and sine, [B, R] each, float32; None for no rotary embedding.
        keys: keys and values of the rows; keys and values of the new token are written to its slots.

    Raises:
        InputError: if the keys do not fit the layers or the rows.
    """
    rows = len(stream)
    of_layers: tuple[Sized, ...] = (keys.keys, keys.values, keys.new_keys, keys.new_values, keys.ranges_of)
    for part in of_layers:
        if len(part) != layers.count:
            raise InputError(
                f"decoder_step: expected keys, values and ranges of {layers.count} layers, got {len(part)}"
            )
    if stream.shape[1] != layers.hidden or len(keys.slots) != rows:
        raise InputError(
            f"decoder_step: expected a stream [B, {layers.hidden}] and B slots, got {list(stream.shape)} and "
            f"{len(keys.slots)}"
        )
    lengths = [len(keys.keys[0]), len(keys.new_keys[0])]
    ranges: list[Tensor] = []
    for of_window in keys.ranges:
        ranges += of_window.tensors(rows, lengths)[:4]
    torch.ops.fastreader.decoder_step_(
        stream,
        *layers.before,
        *(angles if angles is not None and layers.rotates else (None, None)),
        *layers.after,
        keys.keys,
        keys.values,
        keys.new_keys,
        keys.new_values,
        keys.slots,
        ranges,
        keys.ranges_of,
        *layers.scores,
        *layers.layout,
    )
