"""Norm, joined linear layers and gated feed-forward on float32 activations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastreader.models.chunking import blocks_of
from fastreader.models.linear import WideLinear
from fastreader.ops.decoder_layer import Weight
from fastreader.ops.linear import PackedWeight, linear, linear_gated, prepare
from fastreader.ops.pointwise import gate, rms_norm


class Joined(nn.Module):
    """Linear layers that read the same input, as one product where the kernels take a packed weight."""

    def __init__(self, layers: list[nn.Linear], precision: str) -> None:
        super().__init__()
        self.precision = precision
        self.widths = [layer.out_features for layer in layers]
        self._weights: list[Tensor | PackedWeight] = []
        self._biases: list[Tensor | None] = []
        if len(layers) > 1 and isinstance(prepare(layers[0].weight.detach()[:1], precision), PackedWeight):
            self._weights = [prepare(torch.cat([layer.weight.detach() for layer in layers]), precision)]
            self._biases = [_joined_bias(layers)]
        else:
            self._weights = [prepare(layer.weight.detach(), precision) for layer in layers]
            self._biases = [None if layer.bias is None else layer.bias.detach() for layer in layers]

    @property
    def packed(self) -> Weight | None:
        """All the layers as one weight as the kernels want it, where they take it."""
        weight = self._weights[0]
        return Weight(weight, self._biases[0]) if len(self._weights) == 1 and isinstance(weight, PackedWeight) else None

    def forward(self, rows: Tensor) -> list[Tensor]:
        """[T, E] to one [T, F] for each layer; they may be views of one tensor."""
        parts = [linear(rows, w, b, precision=self.precision) for w, b in zip(self._weights, self._biases, strict=True)]
        return parts if len(parts) == len(self.widths) else list(torch.split(parts[0], self.widths, dim=1))

    def gated(self, rows: Tensor, activation: str) -> Tensor:
        """[T, E] to [T, F], in the next product's type: the first half of the outputs gates the second."""
        bf16 = self.precision == "fast"
        if len(self._weights) > 1:
            gates, up = self(rows)
            return gate(gates, up, activation, bf16=bf16)
        return linear_gated(
            rows, self._weights[0], self._biases[0], activation=activation, bf16=bf16, precision=self.precision
        )


class FusedNorm(nn.Module):
    """Root-mean-square norm over the last axis."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.epsilon = epsilon

    def forward(self, input: Tensor) -> Tensor:
        """[..., E] to the same."""
        return rms_norm(input.reshape(-1, input.shape[-1]), self.weight, self.epsilon).view(input.shape)

    def rounded(self, rows: Tensor) -> Tensor:
        """[T, E] to the same in bfloat16."""
        return rms_norm(rows, self.weight, self.epsilon, bf16=True)


class FusedFeedForward(nn.Module):
    """Gated feed-forward over blocks of tokens."""

    def __init__(self, inner: Joined, down: WideLinear, activation: str) -> None:
        super().__init__()
        self.inner, self.down = inner, down
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        """[1, T, E] to the same."""
        rows = input.reshape(-1, input.shape[-1])
        blocks = blocks_of(len(rows), rows.device, sum(self.inner.widths))
        if len(blocks) == 1:
            return self.of_block(rows).view(input.shape)
        out = torch.empty_like(rows)
        for block in blocks:
            out[block] = self.of_block(rows[block])
        return out.view(input.shape)

    def of_block(self, rows: Tensor) -> Tensor:
        """[B, E] to the same, for few enough tokens that the inner values stay in cache."""
        result: Tensor = self.down(self.inner.gated(rows, self.activation))
        return result

    def add_to(self, sum: Tensor, rows: Tensor) -> None:
        """Add `of_block` of rows [B, E] to `sum` [B, E] in place."""
        self.down.add_to(sum, self.inner.gated(rows, self.activation))


def _joined_bias(layers: list[nn.Linear]) -> Tensor | None:
    if all(layer.bias is None for layer in layers):
        return None
    parts: list[Tensor] = [
        layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers
    ]
    return torch.cat(parts).detach()
