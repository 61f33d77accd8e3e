"""linear_logprob: log-probabilities of target tokens straight from hidden states and the LM head's weight."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops import extension
from fastreader.ops.extension import Serving
from fastreader.ops.linear_logprob import cpu
from fastreader.ops.linear_logprob.chunked import linear_logprob_chunked
from fastreader.ops.linear_logprob.reference import linear_logprob_reference
from fastreader.ops.triton_support import cuda_serving, require_triton, why_not

IMPLEMENTATIONS = ("auto", "reference", "torch", "cpu", "triton")


class LogprobStats(NamedTuple):
    """What one pass over the vocabulary gives for each row.

    Attributes:
        logprob: [R], log-probability of the target, nats.
        logsumexp: [R], log-sum-exp of the logits, nats.
        entropy: [R], entropy of the distribution, nats.
        argmax: int64 [R], the most likely token; the lowest id where several tie.
        label_logprob: [R, L], log-probabilities of the labels asked for, nats; None when none were.
    """

    logprob: Tensor
    logsumexp: Tensor
    entropy: Tensor
    argmax: Tensor
    label_logprob: Tensor | None = None


def linear_logprob(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    scale: float = 1.0,
    split: bool = False,
    impl: str = "auto",
) -> Tensor:
    """``log_softmax(cap(scale * (hidden @ weight.T + bias)))[target]`` without holding R x V logits.

    Args and errors as `linear_logprob_stats`.

    Returns:
        float32 [R] (float64 for float64 inputs), nats.
    """
    stats = linear_logprob_stats(
        hidden, weight, target, bias=bias, softcap=softcap, scale=scale, split=split, impl=impl
    )
    return stats.logprob


def linear_logprob_stats(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    scale: float = 1.0,
    labels: Tensor | None = None,
    split: bool = False,
    impl: str = "auto",
) -> LogprobStats:
    """Log-probability of each row's target, with log-sum-exp, entropy and arg-max from the same pass.

    Args:
        hidden: [R, E], floating, the states after the final norm.
        weight: [V, E], same dtype and device, the LM head. With `split` it may be bfloat16 under float32 states.
        target: int64 [R], token ids in [0, V).
        bias: [V] or None.
        softcap: logits pass through ``softcap * tanh(logits / softcap)`` when given (Gemma 2).
        scale: factor on the logits before the cap (Granite, Cohere).
        labels: int64 [L], a few token ids whose log-probabilities every row gives as well.
        split: multiply float32 states as sums of two bfloat16 terms where a kernel has that (two products, three
            where the weight is float32 too), with errors near float32's; elsewhere they are multiplied in float32.
        impl: "auto", or one of `IMPLEMENTATIONS` by name, which runs exactly that or raises; see `status`.

    Returns:
        `LogprobStats`, float32 (float64 for float64 inputs).

    Raises:
        InputError: shapes, dtypes or devices do not fit, a target or label outside the vocabulary, or an input
            that requires a gradient.
        UnsupportedImplementationError: no such implementation, or the one named cannot take these inputs here.
    """
    _check(hidden, weight, target, bias, softcap, split)
    if labels is not None:
        _check_ids("labels", labels, None, hidden, weight)
    if impl not in IMPLEMENTATIONS:
        raise UnsupportedImplementationError(
            f"linear_logprob: impl must be one of {', '.join(IMPLEMENTATIONS)}, got {impl!r}"
        )
    if impl == "auto" and hidden.is_cuda and why_not(hidden) is None:
        impl = "triton"
    if impl == "triton":
        require_triton("linear_logprob", hidden)
        from fastreader.ops.linear_logprob.triton import linear_logprob_triton

        stats = linear_logprob_triton(hidden, weight, target, bias, softcap, scale, labels)
        assert stats.entropy is not None and stats.argmax is not None
        return LogprobStats(stats.logprob, stats.logsumexp, stats.entropy, stats.argmax, stats.label_logprob)
    if impl == "reference":
        return LogprobStats(*linear_logprob_reference(hidden, weight, target, bias, softcap, scale, labels))
    why_not_cpu = cpu.why_not(hidden) if impl in ("auto", "cpu") else None
    if impl == "cpu" and why_not_cpu is not None:
        raise UnsupportedImplementationError(f"linear_logprob: impl 'cpu' cannot run: {why_not_cpu}")
    if impl == "torch" or why_not_cpu is not None:
        return LogprobStats(*linear_logprob_chunked(hidden, weight, target, bias, softcap, scale, labels))
    return LogprobStats(*cpu.linear_logprob_cpu(hidden, weight, target, bias, softcap, scale, labels, split))


def status() -> list[Serving]:
    """Which implementation `impl="auto"` picks on each kind of device, and why."""
    missing = extension.why_missing()
    if missing is not None:
        served = Serving("cpu", "torch", missing)
    else:
        served = Serving(
            "cpu (float32, bfloat16)", "cpu", f"C++ kernels, up to {extension.best_instruction_set()} on this machine"
        )
    return [served, cuda_serving(), Serving("other dtypes and devices", "torch", "no kernel takes them")]


def _check(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, softcap: float | None, split: bool
) -> None:
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise InputError(
            "linear_logprob: expected hidden [R, E] and weight [V, E], "
            f"got {list(hidden.shape)} and {list(weight.shape)}"
        )
    if hidden.shape[1] == 0:
        raise InputError(f"linear_logprob: expected states of at least one value, got {list(hidden.shape)}")
    if split and hidden.dtype != torch.float32:
        raise InputError(f"linear_logprob: split takes float32 states, got {hidden.dtype}")
    allowed = (torch.float32, torch.bfloat16) if split else (hidden.dtype,)
    for name, tensor in (("hidden", hidden), ("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        if not tensor.is_floating_point() or tensor.dtype not in allowed or tensor.device != hidden.device:
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
    _check_ids("target", target, hidden.shape[0], hidden, weight)
    if softcap is not None and not (softcap > 0 and np.isfinite(softcap)):
        raise InputError(f"linear_logprob: softcap must be positive and finite, got {softcap}")


def _check_ids(name: str, ids: Tensor, length: int | None, hidden: Tensor, weight: Tensor) -> None:
    fits = ids.dim() == 1 and (length is None or len(ids) == length)
    if ids.dtype != torch.int64 or not fits or ids.device != hidden.device:
        raise InputError(
            f"linear_logprob: {name} must be int64 [{'L' if length is None else length}] on {hidden.device}, "
            f"got {ids.dtype} {list(ids.shape)} on {ids.device}"
        )
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= weight.shape[0]):
        raise InputError(
            f"linear_logprob: {name} must be in [0, {weight.shape[0]}), got {int(ids.min())}..{int(ids.max())}"
        )
