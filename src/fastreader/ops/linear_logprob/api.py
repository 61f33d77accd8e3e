"""linear_logprob: log-probabilities of target tokens straight from hidden states and the LM head's weight."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops.linear_logprob.chunked import linear_logprob_chunked
from fastreader.ops.linear_logprob.reference import linear_logprob_reference
from fastreader.ops.triton_support import require_triton, why_not

IMPLEMENTATIONS = ("auto", "reference", "torch", "triton")


class LogprobStats(NamedTuple):
    """What one pass over the vocabulary gives for each row.

    Attributes:
        logprob: [R], log-probability of the target, nats.
        logsumexp: [R], log-sum-exp of the logits, nats.
        entropy: [R], entropy of the distribution, nats.
        argmax: int64 [R], the most likely token; the lowest id where several tie.
    """

    logprob: Tensor
    logsumexp: Tensor
    entropy: Tensor
    argmax: Tensor


def linear_logprob(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    scale: float = 1.0,
    impl: str = "auto",
) -> Tensor:
    """``log_softmax(cap(scale * (hidden @ weight.T + bias)))[target]`` without holding R x V logits.

    Args and errors as `linear_logprob_stats`.

    Returns:
        float32 [R] (float64 for float64 inputs), nats.
    """
    return linear_logprob_stats(hidden, weight, target, bias=bias, softcap=softcap, scale=scale, impl=impl).logprob


def linear_logprob_stats(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    scale: float = 1.0,
    impl: str = "auto",
) -> LogprobStats:
    """Log-probability of each row's target, with log-sum-exp, entropy and arg-max from the same pass.

    Args:
        hidden: [R, E], floating, the states after the final norm.
        weight: [V, E], same dtype and device, the LM head.
        target: int64 [R], token ids in [0, V).
        bias: [V] or None.
        softcap: logits pass through ``softcap * tanh(logits / softcap)`` when given (Gemma 2).
        scale: factor on the logits before the cap (Granite, Cohere).
        impl: "auto", or one of `IMPLEMENTATIONS` by name, which runs exactly that or raises.

    Returns:
        `LogprobStats`, float32 (float64 for float64 inputs).

    Raises:
        InputError: shapes, dtypes or devices do not fit, a target outside the vocabulary, or an input that
            requires a gradient.
        UnsupportedImplementationError: no such implementation.
    """
    _check(hidden, weight, target, bias, softcap)
    if impl == "auto" and hidden.is_cuda and why_not(hidden) is None:
        impl = "triton"
    if impl == "triton":
        require_triton("linear_logprob", hidden)
        from fastreader.ops.linear_logprob.triton import linear_logprob_triton

        stats = linear_logprob_triton(hidden, weight, target, bias, softcap, scale)
        assert stats.entropy is not None and stats.argmax is not None
        return LogprobStats(stats.logprob, stats.logsumexp, stats.entropy, stats.argmax)
    if impl == "reference":
        return LogprobStats(*linear_logprob_reference(hidden, weight, target, bias, softcap, scale))
    if impl in ("auto", "torch"):
        return LogprobStats(*linear_logprob_chunked(hidden, weight, target, bias, softcap, scale))
    raise UnsupportedImplementationError(
        f"linear_logprob: impl must be one of {', '.join(IMPLEMENTATIONS)}, got {impl!r}"
    )


def _check(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, softcap: float | None) -> None:
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise InputError(
            f"linear_logprob: expected hidden [R, E] and weight [V, E], got {list(hidden.shape)} and {list(weight.shape)}"
        )
    for name, tensor in (("hidden", hidden), ("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        if not tensor.is_floating_point() or tensor.dtype != hidden.dtype or tensor.device != hidden.device:
            raise InputError(
                f"linear_logprob: {name} must be floating and {hidden.dtype} on {hidden.device} like hidden, "
                f"got {tensor.dtype} on {tensor.device}"
            )
        if tensor.requires_grad and torch.is_grad_enabled():
            raise InputError(
                f"linear_logprob: {name} requires a gradient, and this op is forward only; use torch.no_grad()"
            )
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise InputError(f"linear_logprob: bias must be [{weight.shape[0]}], got {list(bias.shape)}")
    if target.dtype != torch.int64 or tuple(target.shape) != (hidden.shape[0],) or target.device != hidden.device:
        raise InputError(
            f"linear_logprob: target must be int64 [{hidden.shape[0]}] on {hidden.device}, "
            f"got {target.dtype} {list(target.shape)} on {target.device}"
        )
    if len(target) and (int(target.min()) < 0 or int(target.max()) >= weight.shape[0]):
        raise InputError(
            f"linear_logprob: targets must be in [0, {weight.shape[0]}), got {int(target.min())}..{int(target.max())}"
        )
    if softcap is not None and not (softcap > 0 and np.isfinite(softcap)):
        raise InputError(f"linear_logprob: softcap must be positive and finite, got {softcap}")
