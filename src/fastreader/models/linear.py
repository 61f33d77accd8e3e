"""WideLinear: a linear layer on float32 activations."""

from __future__ import annotations

from torch import Tensor, nn

from fastreader.ops.decoder_layer import Weight
from fastreader.ops.linear import PackedWeight, linear, linear_add, prepare


class WideLinear(nn.Module):
    """A linear layer on float32 activations; the weight stays as stored, or as the kernels want it laid out."""

    def __init__(self, layer: nn.Linear, precision: str) -> None:
        super().__init__()
        self.bias = layer.bias
        self.precision = precision
        self._weight: Tensor | PackedWeight = prepare(layer.weight.detach(), precision)

    def forward(self, input: Tensor) -> Tensor:
        """[..., E] to [..., F]."""
        rows = input.reshape(-1, input.shape[-1])
        return linear(rows, self._weight, self.bias, precision=self.precision).reshape(*input.shape[:-1], -1)

    @property
    def packed(self) -> Weight | None:
        """The weight as the kernels want it, where they take it."""
        return Weight(self._weight, self.bias) if isinstance(self._weight, PackedWeight) else None

    def add_to(self, sum: Tensor, rows: Tensor) -> None:
        """Add the layer's output for rows [T, E] to `sum` [T, F] in place."""
        linear_add(sum, rows, self._weight, self.bias, precision=self.precision)
