"""linear_logprob as its definition reads: full logits, any dtype up to float64. For checks and small sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.ops.linear_logprob.schema import LogprobStats


def linear_logprob_reference(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    softcap: float | None,
    scale: float,
    *,
    labels: Tensor | None = None,
) -> LogprobStats:
    """Score targets as `linear_logprob_stats` does."""
    dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    logits = hidden.to(dtype) @ weight.to(dtype).T
    if bias is not None:
        logits = logits + bias.to(dtype)
    logits = logits * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    lse = torch.logsumexp(logits, dim=-1)
    logprob = logits - lse[:, None]
    entropy = -(logprob.exp() * logprob).sum(-1)
    labelled = None if labels is None else logprob[:, labels]
    return LogprobStats(logprob.gather(1, target[:, None])[:, 0], lse, entropy, logits.argmax(-1), labelled)
