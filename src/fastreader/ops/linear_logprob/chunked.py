"""linear_logprob in plain PyTorch: online log-sum-exp over blocks of rows and of the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.ops.linear.blocks import AT_ONCE, BlockTensor
from fastreader.ops.linear_logprob.schema import LogprobStats

_ROWS = 512  # with _VOCABULARY, a 16 MB block of float32 logits
_VOCABULARY = 8192


def linear_logprob_chunked(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    softcap: float | None,
    scale: float,
    *,
    labels: Tensor | None = None,
) -> LogprobStats:
    """Score targets as `linear_logprob_stats` does.

    Products accumulate in float32 (float64 for float64 inputs), since bfloat16 logits near 20 would be off by 0.06.
    """
    dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    count, device = hidden.shape[0], hidden.device
    lse = torch.full((count,), float("-inf"), dtype=dtype, device=device)
    picked = torch.zeros(count, dtype=dtype, device=device)
    # Running sum of logit * exp(logit) relative to the running log-sum-exp: the mean logit, for the entropy.
    mean = torch.zeros(count, dtype=dtype, device=device)
    best = torch.full((count,), float("-inf"), dtype=dtype, device=device)
    argmax = torch.zeros(count, dtype=torch.int64, device=device)
    step = _VOCABULARY
    if isinstance(weight, BlockTensor) or (weight.dtype != dtype and weight.device.type == "cpu"):
        # Memory for more is new in each block, and clearing it takes longer.
        step = min(step, max(_ROWS, AT_ONCE // weight.shape[1]))
    for low in range(0, weight.shape[0], step):
        part = weight[low : low + step]
        block_weight = (part.plain() if isinstance(part, BlockTensor) else part).to(hidden.dtype).to(dtype)
        block_bias = None if bias is None else bias[low : low + step].to(dtype)
        for first in range(0, count, _ROWS):
            rows = slice(first, first + _ROWS)
            logits = _logits(hidden[rows].to(dtype), block_weight, block_bias, softcap, scale)
            block_best, block_argmax = logits.max(dim=-1)
            better = block_best > best[rows]
            argmax[rows] = torch.where(better, block_argmax + low, argmax[rows])
            best[rows] = torch.where(better, block_best, best[rows])
            block_lse = torch.logsumexp(logits, dim=-1)
            block_mean = (torch.exp(logits - block_lse[:, None]) * logits).sum(-1)
            merged = torch.logaddexp(lse[rows], block_lse)
            mean[rows] = mean[rows] * torch.exp(lse[rows] - merged) + block_mean * torch.exp(block_lse - merged)
            lse[rows] = merged
            here = (target[rows] >= low) & (target[rows] < low + logits.shape[1])
            index = (target[rows] - low).clamp(0, logits.shape[1] - 1)
            picked[rows] = torch.where(here, logits.gather(1, index[:, None])[:, 0], picked[rows])
    labelled: Tensor | None = None
    if labels is not None:
        label_bias = None if bias is None else bias[labels].to(dtype)
        labelled = (
            _logits(hidden.to(dtype), weight[labels].to(hidden.dtype).to(dtype), label_bias, softcap, scale)
            - lse[:, None]
        )
    return LogprobStats(picked - lse, lse, lse - mean, argmax, labelled)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None, scale: float) -> Tensor:
    on_cpu = hidden.device.type == "cpu"  # few rows are several times as fast there on the right
    logits = (weight @ hidden.T).T.contiguous() if on_cpu else hidden @ weight.T
    if bias is not None:
        logits += bias
    if scale != 1.0:
        logits *= scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits
