"""Log-probabilities of chosen tokens under a frozen LM head, with gradients to the hidden states."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

_ROWS = 256  # of logits held at once: 50 MB at a vocabulary of 49,152


def logprobs(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    """log softmax(hidden weight^T)[target] in nats.

    Over blocks of rows whose logits are computed again in the backward pass, so that rows x vocabulary is never held.

    Args:
        hidden: [R, E].
        weight: [V, E], needs no gradient.
        target: int64 [R].
        bias: [V] or None.
        scale: factor on the logits, applied before the soft cap.
        softcap: bound on the logits, or None.

    Returns:
        [R] in float32 (float64 for float64 hidden states).
    """
    blocks = [
        checkpoint(
            _block, hidden[i : i + _ROWS], weight, target[i : i + _ROWS], bias, scale, softcap, use_reentrant=False
        )
        for i in range(0, len(hidden), _ROWS)
    ]
    return torch.cat(blocks)


def _block(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    logits = hidden.to(wide) @ weight.to(wide).T
    if bias is not None:
        logits = logits + bias.to(wide)
    logits = logits * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits.log_softmax(dim=-1).gather(1, target[:, None])[:, 0]
