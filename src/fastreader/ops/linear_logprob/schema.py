"""The op of the C++ kernel (csrc/linear_logprob.cpp) and its fake."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastreader.ops.library import define


@define(
    "linear_logprob(Tensor hidden, Tensor weight, Tensor target, Tensor? bias, Tensor? labels, float scale, "
    "float? softcap, str? input_precision, str isa) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def _fake(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, labels: Tensor | None, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows = hidden.shape[0]
    logprob, logsumexp, entropy = (hidden.new_empty(rows, dtype=torch.float32) for _ in range(3))
    label_logprob = hidden.new_empty((rows, 0 if labels is None else labels.shape[0]), dtype=torch.float32)
    return logprob, logsumexp, entropy, hidden.new_empty(rows, dtype=torch.int64), label_logprob
