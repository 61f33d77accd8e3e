"""Linear layers, norms and gated feed-forward on float32 activations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastreader.models.machine.chunking import map_chunks
from fastreader.ops import triton_support
from fastreader.ops.decoder_layer import Weight
from fastreader.ops.linear import BlockTensor, PackedWeight, linear, linear_add, linear_gated, prepare
from fastreader.ops.linear.blocks import can_join, join
from fastreader.ops.linear.cpu import pack_together
from fastreader.ops.pointwise import gate, rms_norm

_ROUGH_ROWS = 16  # of a weight
_GATED_VALUES = 2**18  # of a part: 1 MB


class UpcastLinear(nn.Module):
    """A linear layer on float32 activations, with its weight as stored or in the layout of the kernels.

    The weight is laid out when it is first multiplied, since most layers of a model are joined with others before.

    Attributes:
        stored: the layer with the weight as stored, until the check at load is over.
        precision: of the products.
    """

    def __init__(self, layer: nn.Linear, precision: str) -> None:
        super().__init__()
        self.stored: tuple[nn.Linear, ...] = (layer,)
        self.bias = layer.bias
        self.precision = self._products = precision
        self._weight: Tensor | PackedWeight | None = None
        self._exact = False
        self._rough = False
        self._passes = False

    @property
    def laid_out(self) -> Tensor | PackedWeight:
        """The weight in the layout of the products."""
        if self._weight is None:
            self._weight = prepare(self.stored[0].weight.detach(), self._products)
        return self._weight

    @property
    def operand(self) -> Tensor | PackedWeight:
        """The weight as `linear` takes it now."""
        return self.stored[0].weight.detach() if self._exact else self.laid_out

    def hold(self, weight: PackedWeight | None) -> None:
        """Use the same weight in other memory, or with None drop its layout until it is needed again."""
        self._weight = weight

    def release(self) -> None:
        """Release the weight as stored, which the layout for the kernels replaces."""
        self._weight = self.laid_out
        self.stored = ()

    def forward(self, input: Tensor) -> Tensor:
        """Map [..., E] to [..., F]."""
        if self._passes:
            return input
        if self._rough:
            (layer,) = self.stored
            some = F.linear(input, layer.weight[:_ROUGH_ROWS].to(input.dtype))
            return some.repeat(*[1] * (input.dim() - 1), -(-len(layer.weight) // _ROUGH_ROWS))[..., : len(layer.weight)]
        rows = input.reshape(-1, input.shape[-1])
        return linear(rows, self.operand, self.bias, precision=self.precision).reshape(*input.shape[:-1], -1)

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Within the block, multiply the weight as stored in the type of the input, see `JoinedLinear.exact`."""
        kept = self._exact, self.precision
        self._exact, self.precision = True, "torch"
        try:
            yield
        finally:
            self._exact, self.precision = kept

    @contextmanager
    def roughly(self) -> Iterator[None]:
        """Within the block, multiply by a few rows of the weight, again and again, so that the others are not read."""
        self._rough = bool(self.stored)
        try:
            yield
        finally:
            self._rough = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Within the block, return inputs as they are, because others multiply them later (`add_to`)."""
        self._passes = True
        try:
            yield
        finally:
            self._passes = False

    @property
    def in_kernels(self) -> bool:
        """Whether the kernels multiply."""
        return isinstance(self.laid_out, PackedWeight)

    @property
    def packed(self) -> Weight | None:
        """The weight in the layout of the kernels, or None if they do not support it, or do not multiply it now."""
        weight = None if self._rough else self.operand
        return Weight(weight, self.bias) if isinstance(weight, PackedWeight) else None

    def add_to(self, sum: Tensor, rows: Tensor) -> None:
        """Add the layer's output for rows [T, E] to `sum` [T, F] in place."""
        linear_add(sum, rows, self.operand, self.bias, precision=self.precision)


class JoinedLinear(nn.Module):
    """Linear layers with the same input, as one product if the kernels support the packed weight or `own` is set.

    The layers then hold their rows of the joined weight, or drop their layout, so that no weight is laid out twice.

    Args:
        parts: the layers.
        precision: of the products.
        own: nobody else changes or frees the weights, so that off the CPU they may become views of one buffer.
    """

    def __init__(self, parts: list[UpcastLinear], precision: str, own: bool = False) -> None:
        super().__init__()
        layers = [part.stored[0] for part in parts]
        self.stored = tuple(layers)
        self.precision = precision
        self.widths = [layer.out_features for layer in layers]
        self._weights: list[Tensor | PackedWeight] = []
        self._biases: list[Tensor | None] = []
        weights = [layer.weight.detach() for layer in layers]
        blocks = any(isinstance(weight, BlockTensor) for weight in weights)
        kernels = len(layers) > 1 and isinstance(prepare(weights[0][:1], precision), PackedWeight)
        views: list[PackedWeight | None] = [None] * len(parts)
        if kernels and can_join([layer.weight for layer in layers]):
            self._weights = [prepare(BlockTensor(join([layer.weight for layer in layers])), precision)]
            self._biases = [_joined_bias(layers)]
        elif kernels and not blocks:
            joined = pack_together(weights, precision)
            self._weights = [prepare(torch.cat(weights), precision) if joined is None else joined[0]]
            self._biases = [_joined_bias(layers)]
            views = views if joined is None else [*joined[1]]
        elif own and not blocks and _is_on_gpu(weights):
            self._weights, self._biases = [_share_buffer(layers)], [_joined_bias(layers)]
        else:
            self._weights = [part.laid_out for part in parts]
            self._biases = [None if layer.bias is None else layer.bias.detach() for layer in layers]
            return
        for part, view in zip(parts, views, strict=True):
            part.hold(view)

    def release(self) -> None:
        """Release the weights as stored, which the layout for the kernels replaces."""
        self.stored = ()

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Within the block, multiply the weights as stored in the type of the input.

        The check at load does so; the layers that hold these weights are kept only until then (`stored`).
        """
        kept = self._weights, self._biases, self.precision
        self._weights = [layer.weight.detach() for layer in self.stored]
        self._biases = [None if layer.bias is None else layer.bias.detach() for layer in self.stored]
        self.precision = "torch"
        try:
            yield
        finally:
            self._weights, self._biases, self.precision = kept

    @property
    def in_kernels(self) -> bool:
        """Whether the kernels multiply."""
        return isinstance(self._weights[0], PackedWeight)

    @property
    def packed(self) -> Weight | None:
        """All layers as one weight in the layout of the kernels, or None if they do not support it."""
        weight = self._weights[0]
        return Weight(weight, self._biases[0]) if len(self._weights) == 1 and isinstance(weight, PackedWeight) else None

    @property
    def joined(self) -> bool:
        """Whether one product serves all layers."""
        return len(self._weights) == 1

    def whole(self, rows: Tensor) -> Tensor:
        """Map [T, E] to the results of all joined layers next to each other, [T, sum of F]."""
        return linear(rows, self._weights[0], self._biases[0], precision=self.precision)

    def forward(self, rows: Tensor) -> list[Tensor]:
        """Map [T, E] to [T, F] for each layer, which may be views of one tensor."""
        parts = [linear(rows, w, b, precision=self.precision) for w, b in zip(self._weights, self._biases, strict=True)]
        return parts if len(parts) == len(self.widths) else list(torch.split(parts[0], self.widths, dim=1))

    def gated(self, rows: Tensor, activation: str) -> Tensor:
        """Map [T, E] to [T, F] in the type of the next product, the first half of the outputs gating the second."""
        bf16 = self.precision == "bf16"
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
        """Normalise [..., E]."""
        return rms_norm(input.reshape(-1, input.shape[-1]), self.weight, self.epsilon).view(input.shape)

    def rounded(self, rows: Tensor) -> Tensor:
        """Normalise [T, E] and round to bfloat16."""
        return rms_norm(rows, self.weight, self.epsilon, bf16=True)


class FusedGatedNorm(nn.Module):
    """Root-mean-square norm over the last axis and a gate with SiLU, as Mamba-2 and gated delta nets end.

    Args:
        weight, epsilon: of the norm.
        gated_first: whether the gate comes before the norm.
    """

    def __init__(self, weight: Tensor, epsilon: float, gated_first: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.epsilon, self.gated_first = epsilon, gated_first

    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        """Map [..., E] and as many gates to [..., E], a part that stays in cache at a time."""
        rows, gates = (x.reshape(-1, x.shape[-1]) for x in (hidden_states, gate))
        out = torch.empty_like(rows)
        size = max(1, _GATED_VALUES // rows.shape[-1])
        for first in range(0, len(rows), size):
            part = slice(first, first + size)
            out[part] = self._gated(rows[part], gates[part])
        return out.view(hidden_states.shape)

    def _gated(self, rows: Tensor, gates: Tensor) -> Tensor:
        if self.gated_first:
            return rms_norm(gate(gates, rows, "silu"), self.weight, self.epsilon)
        return gate(gates, rms_norm(rows, self.weight, self.epsilon), "silu")


class FusedFeedForward(nn.Module):
    """Gated feed-forward over chunks of tokens."""

    def __init__(self, inner: JoinedLinear, down: UpcastLinear, activation: str) -> None:
        super().__init__()
        self.inner, self.down = inner, down
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        """Map [1, T, E] to [1, T, E]."""
        rows = input.reshape(-1, input.shape[-1])
        return map_chunks(self.chunk, rows, sum(self.inner.widths)).view(input.shape)

    def chunk(self, rows: Tensor) -> Tensor:
        """Map [B, E] to [B, E], for tokens few enough that the inner values stay in cache."""
        result: Tensor = self.down(self.inner.gated(rows, self.activation))
        return result

    def add_to(self, sum: Tensor, rows: Tensor) -> None:
        """Add the output for rows [B, E] of one chunk to `sum` [B, E] in place."""
        self.down.add_to(sum, self.inner.gated(rows, self.activation))


def can_split(layer: nn.Linear, precision: str) -> bool:
    """Return whether a layer may be split, because the kernels copy its weights anyway."""
    weight = layer.weight.detach()
    return not isinstance(weight, BlockTensor) and isinstance(prepare(weight[:1], precision), PackedWeight)


def split_heads(layer: nn.Linear, heads: int) -> tuple[nn.Linear, nn.Linear]:
    """Split a layer [heads * 2 * D, E] into the first and the second half of each head."""
    parts = []
    for half in range(2):
        part = nn.Linear(layer.in_features, layer.out_features // 2, bias=False, device="meta")
        for name in ("weight", "bias"):
            rows = getattr(layer, name)
            if rows is not None:
                own = rows.detach().unflatten(0, (heads, 2, -1))[:, half].flatten(0, 1)
                setattr(part, name, nn.Parameter(own, requires_grad=False))
        parts.append(part)
    return parts[0], parts[1]


def _is_on_gpu(weights: list[Tensor]) -> bool:
    alike = len({(weight.dtype, weight.device) for weight in weights}) == 1
    return alike and all(type(weight) is Tensor and triton_support.on_gpu(weight.device) for weight in weights)


def _share_buffer(layers: list[nn.Linear]) -> Tensor:
    """Let the weights of layers be views of one buffer, and return it: [F, E], without a second copy of them."""
    joined = torch.cat([layer.weight.detach() for layer in layers])
    for layer, part in zip(layers, torch.split(joined, [layer.out_features for layer in layers]), strict=True):
        layer.weight.data = part
    return joined


def _joined_bias(layers: list[nn.Linear]) -> Tensor | None:
    if all(layer.bias is None for layer in layers):
        return None
    return torch.cat(
        [layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers]
    ).detach()
