"""The results of linear_logprob, the op of its C++ kernel (csrc/linear_logprob.cpp) and the fake."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastreader.ops.extension import define


class LogprobStats(NamedTuple):
    """The results of one pass over the vocabulary, for each row.

    Attributes:
        logprob: [R], log-probability of the target, nats.
        logsumexp: [R], log-sum-exp of the logits, nats.
        entropy: [R], entropy of the distribution, nats; empty if not asked for.
        argmax: int64 [R], most likely token; the lowest id of a tie; empty if not asked for.
        label_logprob: [R, L], log-probabilities of the labels, nats; None without labels.
    """

    logprob: Tensor
    logsumexp: Tensor
    entropy: Tensor
    argmax: Tensor
    label_logprob: Tensor | None = None


@define(
    "linear_logprob(Tensor hidden, Tensor weight, Tensor target, Tensor? bias, Tensor? labels, float scale, "
    "float? softcap, str? input_precision, int blocks_width, str isa) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def _fake(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, labels: Tensor | None, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows = hidden.shape[0]
    logprob, logsumexp, entropy = (hidden.new_empty(rows, dtype=torch.float32) for _ in range(3))
    label_logprob = hidden.new_empty((rows, 0 if labels is None else labels.shape[0]), dtype=torch.float32)
    return logprob, logsumexp, entropy, hidden.new_empty(rows, dtype=torch.int64), label_logprob
