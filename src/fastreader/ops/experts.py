"""experts: the gated feed-forwards of a mixture, each on the tokens that its router sends it, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastreader.errors import InputError
from fastreader.ops.decoder_layer import Weight
from fastreader.ops.extension import define
from fastreader.ops.linear.cpu import GATE_MULTIPLE
from fastreader.ops.operands import check_activation
from fastreader.ops.pointwise.torch_impl import gate_torch

CLAMPED = "clamped"


@define(
    "experts(Tensor input, Tensor chosen, Tensor factors, Tensor[] inner, Tensor[] down, Tensor?[] biases, int width, "
    "str activation, float[] constants, str? input_precision, str weight_type, str isa) -> Tensor"
)
def _experts(input: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(input)


@dataclass(frozen=True)
class Gating:
    """How the first product of an expert, [T, 2I], becomes the second's input, [T, I].

    Attributes:
        activation: "silu" or "gelu_tanh" of the first half, times the second half; or `CLAMPED`, GPT-OSS's, where gates
            g and values u alternate: ``(clamp(u, -limit, limit) + 1) * h * sigmoid(factor * h)``, h = min(g, limit).
        constants: factor and limit of `CLAMPED`.
    """

    activation: str
    constants: tuple[float, ...] = ()

    def __call__(self, product: Tensor) -> Tensor:
        """Compute it in plain PyTorch."""
        if self.activation != CLAMPED:
            gates, values = product.chunk(2, dim=-1)
            return gate_torch(gates, values, self.activation)
        factor, limit = self.constants
        gate, up = product[..., ::2].clamp(max=limit), product[..., 1::2].clamp(-limit, limit)
        return (up + 1) * (gate * torch.sigmoid(gate * factor))


class PackedExperts:
    """The weights of a layer's experts, as the op takes them.

    Args:
        inner: of each expert, [2I, E].
        down: of each expert, [E, I].
        gating: between them.

    Raises:
        InputError: if the weights were not packed alike, or the kernels do not take their sizes.
    """

    def __init__(self, inner: Sequence[Weight], down: Sequence[Weight], gating: Gating) -> None:
        weights = [*inner, *down]
        if not inner or len(inner) != len(down) or len({each.packed.layout for each in weights}) > 1:
            raise InputError("experts: expected two weights of each expert, all packed alike")
        first, second = inner[0].packed, down[0].packed
        alike = {(each.packed.width, each.packed.depth) for each in inner} == {(first.width, first.depth)}
        alike &= {(each.packed.width, each.packed.depth) for each in down} == {(first.depth, first.width // 2)}
        if not alike or first.width != 2 * second.depth:
            raise InputError(
                f"experts: expected weights [2I, E] and [E, I] of every expert, got [{first.width}, {first.depth}] and "
                f"[{second.width}, {second.depth}]"
            )
        if gating.activation != CLAMPED:
            check_activation("experts", gating.activation)
            if first.width % GATE_MULTIPLE:
                raise InputError(f"experts: I must be a multiple of {GATE_MULTIPLE // 2}, got {first.width / 2:g}")
        self.precision = first.precision
        self._inner, self._down = ([each.packed.data for each in part] for part in (inner, down))
        biases = [part.bias for pair in zip(inner, down, strict=True) for part in pair]
        self._biases = [] if all(bias is None for bias in biases) else biases
        self._others = first.width, gating.activation, list(gating.constants), *first.layout

    def __call__(self, input: Tensor, chosen: Tensor, factors: Tensor) -> Tensor:
        """Return the sum of each token's experts, times their factors.

        Args:
            input: [T, E], float32.
            chosen: int64 [T, k], the experts of each token; one past the last counts as none.
            factors: [T, k], float32.

        Returns:
            float32 [T, E], each row the same whatever the other rows are.

        Raises:
            RuntimeError: if shapes or types do not fit, or `chosen` names an expert that there is not.
        """
        out: Tensor = torch.ops.fastreader.experts(
            input, chosen, factors, self._inner, self._down, self._biases, *self._others
        )
        return out
