"""linear_logprob: log-probabilities of target tokens straight from hidden states and the LM head's weight."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastreader.errors import InputError
from fastreader.ops import extension, triton_support
from fastreader.ops.dispatch import SERVED, choose
from fastreader.ops.linear.blocks import BlockTensor
from fastreader.ops.linear_logprob.chunked import linear_logprob_chunked
from fastreader.ops.linear_logprob.reference import linear_logprob_reference
from fastreader.ops.linear_logprob.schema import LogprobStats
from fastreader.ops.operands import check_indices, check_operands, check_products

_OP = "linear_logprob"


def linear_logprob(hidden: Tensor, weight: Tensor, target: Tensor, **options: Any) -> Tensor:
    """Compute ``log_softmax(cap(scale * (hidden @ weight.T + bias)))[target]`` without holding R x V logits.

    Arguments and errors are as in `linear_logprob_stats`, without `labels`, `entropy` and `argmax`.

    Returns:
        float32 [R] (float64 for float64 inputs), nats.
    """
    return linear_logprob_stats(hidden, weight, target, entropy=False, argmax=False, **options).logprob


def linear_logprob_stats(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    scale: float = 1.0,
    labels: Tensor | None = None,
    entropy: bool = True,
    argmax: bool = True,
    check_ids: bool = True,
    input_precision: str | None = None,
    impl: str = "auto",
) -> LogprobStats:
    """Compute the log-probability of each row's target, with log-sum-exp, entropy and arg-max from the same pass.

    Args:
        hidden: [R, E], floating, the states after the final norm.
        weight: [V, E], same dtype and device, the LM head. With `input_precision` it may be bfloat16 although the
            states are float32. A quantised weight (`BlockTensor`) goes with states of any type.
        target: int64 [R], token ids in [0, V).
        bias: [V] or None.
        softcap: if given, logits pass through ``softcap * tanh(logits / softcap)`` (Gemma 2).
        scale: factor on the logits before the cap (Granite, Cohere).
        labels: int64 [L], a few token ids whose log-probabilities every row returns too.
        entropy, argmax: False leaves them empty, [0], which saves a GPU work.
        check_ids: False if targets and labels are known to be token ids; on a GPU the check waits for it.
        input_precision: "bf16x3" lets kernels multiply float32 states as sums of two bfloat16 terms (three products,
            or two if the weight is bfloat16), with errors near float32's; "float32" multiplies in float32. Other
            implementations always multiply in float32, as None does.
        impl: "auto", or one of `IMPLEMENTATIONS` by name, which runs exactly that or raises.

    Returns:
        `LogprobStats`, float32 (float64 for float64 inputs).

    Raises:
        InputError: if shapes, dtypes or devices do not fit, a target or label is outside the vocabulary, or an input
            requires a gradient.
        UnsupportedImplementationError: if `impl` is unknown, or the named one cannot take these inputs here.
    """
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        got = f"{list(hidden.shape)} and {list(weight.shape)}"
        raise InputError(f"{_OP}: expected hidden [R, E] and weight [V, E], got {got}")
    if hidden.shape[1] == 0:
        raise InputError(f"{_OP}: expected states of at least one value, got {list(hidden.shape)}")
    if not hidden.is_floating_point():
        raise InputError(f"{_OP}: hidden must be floating, got {hidden.dtype}")
    kept = weight.weight if isinstance(weight, BlockTensor) and weight.whole else None
    like = None
    if impl == "auto" and not torch.is_grad_enabled():
        of_bias = None if bias is None else (bias.dtype, bias.device)
        operands_like = (type(weight), hidden.dtype, hidden.device, weight.dtype, weight.device, of_bias)
        like = (_OP, *operands_like, softcap, input_precision)
    chosen = SERVED.get(like)
    if chosen is None:
        check_products(_OP, softcap, input_precision, hidden.dtype, ("bf16x3", "float32"))
        operands = {"hidden": hidden, "weight": hidden if isinstance(weight, BlockTensor) else weight, "bias": bias}
        check_operands(_OP, operands, None if input_precision is None else (torch.float32, torch.bfloat16))
        cpu, triton = partial(extension.why_not, hidden), partial(triton_support.why_not, hidden)
        chosen = choose(_OP, impl, hidden, cpu=cpu, triton=triton)
        if like is not None:
            SERVED[like] = chosen
    blocks = kept if chosen == "cpu" else None
    if isinstance(weight, BlockTensor) and blocks is None and chosen != "torch":
        weight = weight.plain().to(hidden.dtype)
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise InputError(f"{_OP}: bias must be [{weight.shape[0]}], got {list(bias.shape)}")
    below = weight.shape[0] if check_ids else None
    check_indices(_OP, "target", target, hidden.shape[0], weight.device, dtypes=(torch.int64,), below=below)
    if labels is not None:
        check_indices(_OP, "labels", labels, None, weight.device, dtypes=(torch.int64,), below=below)
    if chosen == "triton":
        from fastreader.ops.linear_logprob.triton import linear_logprob_triton

        return linear_logprob_triton(
            hidden,
            weight,
            target,
            bias=bias,
            softcap=softcap,
            scale=scale,
            labels=labels,
            entropy=entropy,
            argmax=argmax,
            split=input_precision == "bf16x3" and weight.dtype == torch.bfloat16,
        )
    if chosen == "cpu":
        data, width = (blocks.data, blocks.width) if blocks else (weight, 0)
        options = scale, softcap, input_precision, width, extension.instruction_set()
        logprob, logsumexp, spread, best, label_logprob = torch.ops.fastreader.linear_logprob(
            hidden, data, target, bias, labels, *options
        )
        stats = LogprobStats(logprob, logsumexp, spread, best, None if labels is None else label_logprob)
    else:
        run = linear_logprob_reference if chosen == "reference" else linear_logprob_chunked
        stats = run(hidden, weight, target, bias, softcap, scale, labels=labels)
    return stats._replace(
        entropy=stats.entropy if entropy else stats.entropy[:0], argmax=stats.argmax if argmax else stats.argmax[:0]
    )
