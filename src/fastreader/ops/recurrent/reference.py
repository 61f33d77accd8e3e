"""The recurrences as their definitions read, token by token along each path: any dtype up to float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fastreader.ops.recurrent.plan import ScanPlan


def unit(vectors: Tensor, epsilon: float) -> Tensor:
    """Return vectors [..., D] divided by the root of their sum of squares plus `epsilon`."""
    return vectors * torch.rsqrt((vectors * vectors).sum(-1, keepdim=True) + epsilon)


def scan_reference(
    plan: ScanPlan, update: Callable[[int, Tensor], tuple[Tensor, Tensor]], zero: Tensor, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return outputs [T, ...] and states after the kept tokens [K, ...].

    Args:
        plan: the tree.
        update: maps a token and the state before it to the state after it and the token's output.
        zero: the state before a text.
        initial: [S, ...], states of texts before this tree; None without such texts.
    """
    states: list[Tensor] = []
    outputs = []
    for token, above in enumerate(plan.parent.tolist()):
        if above < -1:
            assert initial is not None
            before = initial[-2 - above].to(zero.dtype)
        else:
            before = zero if above < 0 else states[above]
        state, output = update(token, before)
        states.append(state)
        outputs.append(output)
    return torch.stack(outputs), torch.stack([states[k] for k in plan.keep]) if len(plan.keep) else zero[None][:0]


def gated_delta_rule_reference(
    query: Tensor, key: Tensor, value: Tensor, gate: Tensor, beta: Tensor, plan: ScanPlan, *, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states of `gated_delta_rule`, for operands of one floating type."""
    groups = value.shape[1] // key.shape[1]
    query, key = (x.repeat_interleave(groups, dim=1) for x in (query, key))
    decay = (gate if gate.dim() == 3 else gate[..., None]).exp()

    def update(token: int, state: Tensor) -> tuple[Tensor, Tensor]:
        state = state * decay[token][..., None]
        found = (state * key[token][..., None]).sum(1)
        change = (value[token] - found) * beta[token][:, None]
        state = state + key[token][..., None] * change[:, None]
        return state, (state * query[token][..., None]).sum(1)

    return scan_reference(plan, update, value.new_zeros(value.shape[1], key.shape[2], value.shape[2]), initial)


def linear_attention_reference(
    query: Tensor, key: Tensor, value: Tensor, gate: Tensor, plan: ScanPlan, *, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states of `linear_attention`, for operands of one floating type."""
    groups = value.shape[1] // key.shape[1]
    query, key = (x.repeat_interleave(groups, dim=1) for x in (query, key))

    def update(token: int, state: Tensor) -> tuple[Tensor, Tensor]:
        state = state * gate[token].exp()[:, None, None] + key[token][..., None] * value[token][:, None]
        return state, (state * query[token][..., None]).sum(1)

    return scan_reference(plan, update, value.new_zeros(value.shape[1], key.shape[2], value.shape[2]), initial)


def selective_scan_reference(
    input: Tensor,
    step: Tensor,
    transition: Tensor,
    entry: Tensor,
    readout: Tensor,
    plan: ScanPlan,
    *,
    initial: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states of `selective_scan`, for operands of one floating type."""

    def update(token: int, state: Tensor) -> tuple[Tensor, Tensor]:
        state = state * (step[token][:, None] * transition).exp()
        state = state + (step[token] * input[token])[:, None] * entry[token]
        return state, (state * readout[token]).sum(1)

    return scan_reference(plan, update, input.new_zeros(transition.shape), initial)


def linear_recurrence_reference(
    input: Tensor, decay: Tensor, plan: ScanPlan, *, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states of `linear_recurrence`, for operands of one floating type."""

    def update(token: int, state: Tensor) -> tuple[Tensor, Tensor]:
        state = decay[token] * state + input[token]
        return state, state

    return scan_reference(plan, update, input.new_zeros(input.shape[1]), initial)
