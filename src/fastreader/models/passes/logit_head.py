"""LogitHead: all logits of a few rows, from which the next tokens are chosen."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from fastreader.core.tree import IntArray
from fastreader.ops import triton_support
from fastreader.ops.linear import BlockTensor, PackedWeight, linear, linear_add, prepare

_PRODUCT_BYTES = 16 << 20  # logits of one product, whose rows share a reading of the weight
_CHOSEN_BYTES = 2 << 20  # of which tokens are chosen at once, and copies held
_GPU_BYTES = 64 << 20  # of both on a GPU, where a launch costs more than memory
_COPIES = 6  # of the logits, in float32: some draws sort or weight a copy, log-probabilities need two in float64
_SORTED_COPIES = 16  # on a GPU, where draws from a nucleus sort all logits


class LogitHead:
    """The LM head as float32 logits, which scoring never holds (`ops.linear_logprob`).

    On first use the weight is laid out for the kernels, which takes the memory of one more LM head.

    Args:
        layer: the model's LM head.
        precision: of the products, see `ops.linear`; for "int16" the head's are in float32, since few rows wait for
            bytes, unless its weight keeps the integers of a file.
        scale: factor on the logits.
        softcap: bound on the scaled logits, or None.
    """

    def __init__(self, layer: nn.Linear, precision: str, scale: float, softcap: float | None) -> None:
        self._layer = layer
        self._scale = scale
        self._softcap = softcap
        widens = precision == "int16" and not isinstance(layer.weight, BlockTensor)
        self._precision = "float32" if widens else precision
        self._weight: Tensor | PackedWeight | None = None
        on_cpu, row = layer.weight.device.type == "cpu", 4 * layer.weight.shape[0]
        # Of how many rows logits are computed at once, and of how many of these tokens are chosen at once.
        self._product = max(1, (_PRODUCT_BYTES if on_cpu else _GPU_BYTES) // row)
        self._chosen = max(1, (_CHOSEN_BYTES if on_cpu else _GPU_BYTES) // row)

    def exact(self) -> LogitHead:
        """Return the same head with exact products, which lays out no weight."""
        return LogitHead(self._layer, "torch", self._scale, self._softcap)

    def sampling_bytes(self, rows: int) -> int:
        """Return the memory of choosing the next tokens of `rows` rows, with the weight's layout if not made yet."""
        weight = self._layer.weight
        row = 4 * weight.shape[0]
        product, chosen = row * min(self._product, rows), row * min(self._chosen, rows)
        laid_out = self._weight is not None or isinstance(weight, BlockTensor)
        if triton_support.on_gpu(weight.device):
            return _SORTED_COPIES * product
        choosing = product + _COPIES * chosen
        if laid_out or self._precision == "torch" or weight.device.type != "cpu":
            return choosing
        wide = self._precision in ("float32", "bf16x3") and weight.dtype != torch.bfloat16
        terms = 2 if wide else 1  # of two bytes each
        return choosing + 2 * terms * weight.numel()

    @torch.inference_mode()
    def parts(self, states: Tensor, state_of: IntArray | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Yield the logits of a few rows at a time, so that choosing tokens takes little memory.

        Args:
            states: hidden states [S, E].
            state_of: int64 [R], ascending: row r's distribution comes from ``states[state_of[r]]``; None gives each
                state one row.

        Yields:
            The places of R' consecutive rows, and their logits as `__call__` returns them, [R', V], which the consumer
            may change, and which the next part overwrites.
        """
        kept: Tensor | None = None  # for all products: memory of that size, freed and taken again, falls to pieces
        for first in range(0, len(states), self._product):
            logits = self(states[first : first + self._product], kept)
            kept = logits if kept is None else kept
            end = first + len(logits)
            start, stop = (first, end) if state_of is None else np.searchsorted(state_of, [first, end]).tolist()
            for at in range(start, stop, self._chosen):
                part = slice(at, min(at + self._chosen, stop))
                if state_of is None:
                    yield part, logits[at - first : part.stop - first]
                else:
                    yield part, logits[torch.from_numpy(state_of[part] - first).to(logits.device)]

    @torch.inference_mode()
    def __call__(self, states: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the logits [R, V] of hidden states [R, E], in float32 (float64 for float64 states).

        Args:
            states: the hidden states.
            out: earlier logits of as many rows or more, whose memory the kernels use again if they can.
        """
        if self._weight is None:
            self._weight = self._prepared()
        states = states if states.dtype == torch.float64 else states.float()
        if out is None or not isinstance(self._weight, PackedWeight):
            logits = linear(states, self._weight, self._layer.bias, precision=self._precision)
        else:
            logits = out[: len(states)].zero_()
            linear_add(logits, states, self._weight, self._layer.bias, precision=self._precision)
        if self._scale != 1.0:
            logits *= self._scale
        if self._softcap is not None:
            logits.div_(self._softcap).tanh_().mul_(self._softcap)
        return logits

    def _prepared(self) -> Tensor | PackedWeight:
        weight = self._layer.weight.detach()
        prepared = prepare(weight, self._precision)
        if self._precision == "bf16" and not isinstance(prepared, PackedWeight) and weight.device.type == "cpu":
            # PyTorch's bfloat16 products would round the logits themselves, so that neighbours tie.
            self._precision = "torch"
            return weight
        return prepared


def most_likely_tokens(logits: Tensor, count: int, without: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the most likely tokens of each row, in order, and their log-probabilities.

    Args:
        logits: [R, V], float32 or float64; changed in place if `without` is given.
        count: number of tokens K, at most V of which are returned.
        without: int64 [R], tokens to leave out; None leaves out none.

    Returns:
        int64 [R, K] and float64 [R, K], nats.
    """
    total = logits.double().logsumexp(dim=-1, keepdim=True)
    if without is not None:
        logits.scatter_(1, without[:, None], -torch.inf)
    values, tokens = logits.topk(min(count, logits.shape[-1]), dim=-1)
    return tokens, values.double() - total
