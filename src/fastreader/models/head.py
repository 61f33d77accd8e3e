"""LogitHead: all logits of a few rows, for choosing the next token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastreader.ops.linear import PackedWeight, linear, prepare

LOGIT_BYTES = 64 << 20  # logits held at once while tokens are chosen
_COPIES = 6  # of them, in float32: some draws sort or weigh a copy, log-probabilities take two in float64


class LogitHead:
    """The LM head as float32 logits; scoring never holds them and has an op of its own (`ops.linear_logprob`).

    The weight is laid out for the kernels on first use: memory of one more LM head, in models that generate.

    Args:
        layer: the model's LM head.
        precision: of the products, see `ops.linear`.
        scale: factor on the logits.
        softcap: bound on the logits after that, or None.
    """

    def __init__(self, layer: nn.Linear, precision: str, scale: float, softcap: float | None) -> None:
        self._layer = layer
        self._scale = scale
        self._softcap = softcap
        self._precision = precision
        self._weight: Tensor | PackedWeight | None = None

    def bytes_to_choose(self, rows: int) -> int:
        """Memory that choosing the next tokens of so many rows takes, the weight's layout counted if still to be made.

        Args:
            rows: how many are written together.
        """
        weight = self._layer.weight
        logits = min(max(LOGIT_BYTES, 4 * weight.shape[0]), 4 * weight.shape[0] * rows)
        if self._weight is not None or self._precision == "exact" or weight.device.type != "cpu":
            return _COPIES * logits
        terms = 2 if self._precision == "high" and weight.dtype != torch.bfloat16 else 1  # of two bytes each
        return _COPIES * logits + 2 * terms * weight.numel()

    @torch.inference_mode()
    def __call__(self, states: Tensor) -> Tensor:
        """Hidden states [R, E] to logits [R, V], float32 (float64 for float64 states)."""
        if self._weight is None:
            self._prepare()
        assert self._weight is not None
        wide = states if states.dtype == torch.float64 else states.float()
        logits = linear(wide, self._weight, self._layer.bias, precision=self._precision)
        if self._scale != 1.0:
            logits *= self._scale
        if self._softcap is not None:
            logits = self._softcap * torch.tanh(logits / self._softcap)
        return logits

    def _prepare(self) -> None:
        weight = self._layer.weight.detach()
        self._weight = prepare(weight, self._precision)
        if self._precision == "fast" and not isinstance(self._weight, PackedWeight) and weight.device.type == "cpu":
            # PyTorch's bfloat16 products would round the logits themselves, so that neighbours tie.
            self._precision, self._weight = "exact", weight
