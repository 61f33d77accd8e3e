"""Operands of decoder_step: the layers, checked and listed once, and the keys and values of a step's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fastreader.errors import InputError
from fastreader.ops.decode_attention import Ranges
from fastreader.ops.decoder_layer import HeadNorms, Weight
from fastreader.ops.linear.cpu import GATE_MULTIPLE
from fastreader.ops.operands import check_activation


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
        precision: of the products; "fast" takes keys and values in bfloat16, the others in float32.

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
