"""LogitHead: all logits of a few rows, from which the next tokens are chosen."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastreader.ops import triton_support
from fastreader.ops.linear import BlockTensor, PackedWeight, linear, prepare

LOGIT_BYTES = 64 << 20  # logits held at once while tokens are chosen
_COPIES = 6  # of the logits, in float32: some draws sort or weight a copy, log-probabilities need two in float64
_SORTED_COPIES = 16  # on a GPU, where draws from a nucleus sort all logits


class LogitHead:
    """The LM head as float32 logits, which scoring never holds (`ops.linear_logprob`).

    On first use the weight is laid out for the kernels, which takes the memory of one more LM head.

    Args:
        layer: the model's LM head.
        precision: of the products, see `ops.linear`; for "int16" the head's are in float32, since few rows wait for
            bytes.
        scale: factor on the logits.
        softcap: bound on the scaled logits, or None.
    """

    def __init__(self, layer: nn.Linear, precision: str, scale: float, softcap: float | None) -> None:
        self._layer = layer
        self._scale = scale
        self._softcap = softcap
        self._precision = "float32" if precision == "int16" else precision
        self._weight: Tensor | PackedWeight | None = None

    def exact(self) -> LogitHead:
        """Return the same head with exact products, which lays out no weight."""
        return LogitHead(self._layer, "torch", self._scale, self._softcap)

    def sampling_bytes(self, rows: int) -> int:
        """Return the memory of choosing the next tokens of `rows` rows, with the weight's layout if not made yet."""
        weight = self._layer.weight
        logits = min(max(LOGIT_BYTES, 4 * weight.shape[0]), 4 * weight.shape[0] * rows)
        laid_out = self._weight is not None or isinstance(weight, BlockTensor)
        if triton_support.on_gpu(weight.device):
            return _SORTED_COPIES * logits
        if laid_out or self._precision == "torch" or weight.device.type != "cpu":
            return _COPIES * logits
        wide = self._precision in ("float32", "bf16x3") and weight.dtype != torch.bfloat16
        terms = 2 if wide else 1  # of two bytes each
        return _COPIES * logits + 2 * terms * weight.numel()

    @torch.inference_mode()
    def __call__(self, states: Tensor) -> Tensor:
        """Return the logits [R, V] of hidden states [R, E], in float32 (float64 for float64 states)."""
        if self._weight is None:
            self._weight = self._prepared()
        states = states if states.dtype == torch.float64 else states.float()
        logits = linear(states, self._weight, self._layer.bias, precision=self._precision)
        if self._scale != 1.0:
            logits *= self._scale
        if self._softcap is not None:
            logits = self._softcap * torch.tanh(logits / self._softcap)
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
