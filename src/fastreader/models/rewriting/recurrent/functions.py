"""Compute transformers' replaceable functions of recurrent layers over a packed tree.

Layers of hybrid readers call a few functions that transformers lets kernels replace. Each function here takes the
arguments of the one it replaces, of a batch of one, and hands them to the recurrences of the pass. An argument that
would change the result in a way that the packed pass does not compute raises.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastreader.errors import UnsupportedModelError
from fastreader.models.passes.pass_argument import KEYWORD
from fastreader.models.passes.recurrent_states import PathStates
from fastreader.ops.recurrent import gated_delta_rule, linear_attention, linear_recurrence, selective_scan

MIXER = "fastreader_mixer"  # a mixer's number within its model
# Arguments that do not change the result.
_IGNORED = {
    *("position_ids", "cache_position", "use_cache", "return_dict", "output_hidden_states", "output_attentions"),
    *("output_router_logits", "chunk_size", "use_mambapy", "use_associative_scan", "position_embeddings", KEYWORD),
}


def states_of(module: nn.Module, name: str, others: dict[str, Any]) -> tuple[PathStates, int]:
    """Return the recurrences of the pass that a mixer runs in, and the mixer's number.

    Args:
        module: the mixer.
        name: of the function that it calls.
        others: arguments that the packed pass does not compute.

    Raises:
        UnsupportedModelError: if an argument would change the result.
    """
    for argument, given in others.items():
        if argument not in _IGNORED and given is not None and given is not False:
            raise UnsupportedModelError(
                f"{type(module).__name__} passes {argument} to {name}, which the packed pass does not compute"
            )
    return vars(module)[KEYWORD].states, vars(module)[MIXER]


def causal_conv1d_fn(
    module: nn.Module,
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **others: Any,
) -> Tensor:
    """Return inputs [1, C, T] convolved with weights [C, K], after the activation: [1, C, T]."""
    from transformers.activations import ACT2FN

    states, mixer = states_of(module, "causal_conv1d_fn", others)
    fused = "silu" if activation in ("silu", "swish") else None
    out = states.convolve(mixer, hidden_states[0].T.to(_wide(weight.dtype)), weight, bias, fused)
    if activation is not None and fused is None:
        out = ACT2FN[activation](out)
    return out.T[None].to(hidden_states.dtype)


def chunk_gated_delta_rule(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    use_qk_l2norm_in_kernel: bool = False,
    **others: Any,
) -> tuple[Tensor, None]:
    """Return ([1, T, Hv, Dv], None): the gated delta rule over query and key [1, T, Hk, D], value [1, T, Hv, Dv].

    The gate [1, T, Hv] or [1, T, Hv, D] is in logarithms, beta is [1, T, Hv].
    """
    states, mixer = states_of(module, "chunk_gated_delta_rule", others)
    query, key = (x[0].to(_wide(x.dtype)) for x in (query, key))
    rule = partial(
        gated_delta_rule, scale=query.shape[-1] ** -0.5, norm_epsilon=1e-6 if use_qk_l2norm_in_kernel else None
    )
    return states.scan(mixer, rule, query, key, value[0], g[0], beta[0])[None], None


def mamba2_chunk_scan(
    module: nn.Module,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **others: Any,
) -> Tensor:
    """Return Mamba-2's scan, [1, T, H, P], of as many inputs, dt [1, T, H], A [H], and B and C [1, T, G, N]."""
    states, mixer = states_of(module, "mamba2_chunk_scan", others)
    step = dt[0] if dt_bias is None else dt[0] + dt_bias.to(dt.dtype)
    step = (F.softplus(step) if dt_softplus else step).clamp(*dt_limit)
    values = hidden_states[0].to(_wide(hidden_states.dtype))
    step = step.to(values.dtype)
    made = states.scan(mixer, linear_attention, C[0], B[0], values * step[..., None], step * A.to(step.dtype))
    return (made if D is None else made + D[:, None] * values)[None]


def mamba_selective_scan(
    module: nn.Module,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    **others: Any,
) -> Tensor:
    """Return Mamba's scan, gated by z: [1, D, T] of inputs and dt [1, D, T], A [D, N], B and C [1, N, T]."""
    states, mixer = states_of(module, "mamba_selective_scan", others)
    step = dt if delta_bias is None else dt + delta_bias.to(dt.dtype)[:, None]
    step = F.softplus(step) if delta_softplus else step
    operands = (x[0].T for x in (hidden_states, step))
    made = states.scan(mixer, selective_scan, *operands, A, *(x[0].T for x in (B, C))).T[None]
    if D is not None:
        made = made + hidden_states * D[:, None]
    return made if z is None else made * F.silu(z)


def lru_scan(
    module: nn.Module,
    hidden_states: Tensor,
    recurrent_gate: Tensor,
    reset: Tensor,
    recurrent_states: None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Return ([1, T, C], None): RecurrentGemma's recurrence over inputs and gates [1, T, C]."""
    states, mixer = states_of(module, "_rnn_scan", others)
    gates = (recurrent_gate * ~reset)[0].to(_wide(recurrent_gate.dtype))
    return states.scan(mixer, linear_recurrence, hidden_states[0], gates)[None], None


def check_unmasked(module: nn.Module, hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return the states as they are, or raise UnsupportedModelError if there is a mask of padding."""
    if attention_mask is not None:
        raise UnsupportedModelError(f"{type(module).__name__} masks padding, which a packed pass does not have")
    return hidden_states


def needs_a_cache(name: str) -> Callable[..., Any]:
    """Return what replaces a function that continues from a cache of transformers, which the packed pass never has."""

    def refuse(module: nn.Module, *_: Any, **__: Any) -> Any:
        raise UnsupportedModelError(f"{type(module).__name__} calls {name}, which the packed pass does not compute")

    return refuse


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


REPLACED: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": causal_conv1d_fn,
    "chunk_kimi_delta_attention": chunk_gated_delta_rule,
    "mamba2_chunk_scan": mamba2_chunk_scan,
    "mamba_selective_scan": mamba_selective_scan,
    "torch_chunk_gated_delta_rule": chunk_gated_delta_rule,
    **{
        name: needs_a_cache(name)
        for name in (
            *("causal_conv1d_update", "torch_recurrent_gated_delta_rule", "recurrent_kimi_delta_attention"),
            *("mamba2_split_conv1d_scan_combined", "mamba2_selective_state_update", "mamba_selective_state_update"),
            "mamba_inner_fn",
        )
    },
}
