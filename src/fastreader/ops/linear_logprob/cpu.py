"""linear_logprob by the C++ kernels (csrc/linear_logprob*): what they take, and the call."""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.ops import extension
from fastreader.ops.linear_logprob import schema as _schema  # noqa: F401  (defines the op)


def why_not(hidden: Tensor) -> str | None:
    """Why the kernels cannot take these inputs here, or None when they can."""
    missing = extension.why_missing()
    if missing is not None:
        return missing
    if hidden.device.type != "cpu":
        return f"the C++ kernels run on the CPU, the inputs are on {hidden.device}"
    if hidden.dtype not in (torch.float32, torch.bfloat16):
        return f"the C++ kernels take float32 and bfloat16, got {hidden.dtype}"
    return None


def linear_logprob_cpu(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    softcap: float | None,
    scale: float,
    labels: Tensor | None,
    split: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Arguments as `linear_logprob_stats`; returns the fields of `LogprobStats`."""
    logprob, logsumexp, entropy, argmax, label_logprob = torch.ops.fastreader.linear_logprob(
        hidden, weight, target, bias, labels, scale, softcap, split, extension.instruction_set()
    )
    return logprob, logsumexp, entropy, argmax, None if labels is None else label_logprob
