"""Run recurrent layers over a packed tree: linear attention, state spaces and short convolutions.

A mixer's forward stays transformers' own code. In the reader's private copy it runs with other functions under the
names that it calls, those that transformers lets kernels replace, so nothing outside the copy changes. Each function
here takes the arguments of the one it replaces, of a batch of one, and hands them to the recurrences of the pass. An
argument that would change the result in a way that the packed pass does not compute raises.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastreader.errors import UnsupportedModelError
from fastreader.models.passes.pass_argument import KEYWORD, WITHOUT_POSITIONS, hold_pass
from fastreader.models.passes.recurrent_states import PathStates
from fastreader.models.rewriting import surgery
from fastreader.ops.recurrent import gated_delta_rule, linear_attention, linear_recurrence, selective_scan

_KERNELS = "hub_kernels.py"  # the file of transformers whose decorator marks replaceable functions
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


def mixers(model: Any) -> list[tuple[str, nn.Module]]:
    """Return the names and modules of a model's recurrent layers and short convolutions that can be taken over."""
    found = []
    for name, module in model.base_model.named_modules():
        known = type(module).__module__.startswith("transformers.models.")
        if known and (type(module).__name__ in _OWN or set(_names(module)) & set(REPLACED)):
            found.append((name, module))
    return found


def layers_of_mixers(model: Any) -> list[int]:
    """Return the layer of each of a model's mixers."""
    return [_layer(where) for where, _ in mixers(model)]


def take_over(model: Any, name: str) -> None:
    """Give the recurrent layers of a structural copy the recurrences of a packed pass.

    Raises:
        UnsupportedModelError: if a layer of the model `name` calls a replaceable function that has no packed form.
    """
    taken = mixers(model)
    for where, module in model.base_model.named_modules():
        if getattr(module, "layer_idx", 0) in (None, -1) or (where, module) in taken:
            module.layer_idx = _layer(where)
    for number, (where, module) in enumerate(taken):
        surgery.mark(module, MIXER, number)
        if own := _OWN.get(type(module).__name__):
            own(module)
            continue
        for called, function in _names(module).items():
            if called not in REPLACED and surgery.file_of(function).endswith(_KERNELS):
                raise UnsupportedModelError(f"{name}: {where} calls {called}, which the packed pass does not compute")
        _rebind(module)
    hold_pass(model)
    if "position_ids" not in inspect.signature(model.base_model.forward).parameters:
        surgery.mark(model, WITHOUT_POSITIONS)


def has_mixers(model: Any) -> bool:
    """Return whether a structural copy has recurrent layers that were taken over."""
    return any(surgery.mark_of(module, MIXER) is not None for module in model.base_model.modules())


def reads_weight(base: Any, name: str) -> bool:
    """Return whether a linear layer is one whose weight a mixer multiplies itself, as Mamba does that of its steps."""
    where, _, own = name.rpartition(".")
    return own == "dt_proj" and surgery.mark_of(base.get_submodule(where), MIXER) is not None


def _layer(where: str) -> int:
    """Return the index of the layer that a module is in, from its name in the base model."""
    return next(int(part) for part in where.split(".") if part.isdigit())


def _names(module: nn.Module) -> dict[str, Any]:
    """Return what the forward of a module finds in its file under the names that it uses."""
    forward = surgery.forward_of(module)
    return {} if forward is None else surgery.names_used(forward)


def _rebind(module: nn.Module) -> None:
    """Let a module's forward call the functions of a packed pass."""
    functions = {**REPLACED, "apply_mask_to_padding_states": check_unmasked}
    surgery.rebind(module, {name: partial(function, module) for name, function in functions.items()})


def _recurrent_gemma(module: Any) -> None:
    """Replace the convolution and the recurrence that RecurrentGemma's block calls as modules and methods."""

    def convolve(input: Tensor) -> Tensor:
        return causal_conv1d_fn(module, input, module.conv_1d.weight.squeeze(1), module.conv_1d.bias)

    module.conv_1d.forward = convolve
    surgery.mark(module.rg_lru, "_rnn_scan", partial(lru_scan, module))


def _lightning(module: Any) -> None:
    """Replace the forward of MiniMax's lightning attention, which has its recurrence in its own code."""

    def forward(hidden_states: Tensor, position_embeddings: Any = None, **others: Any) -> tuple[Tensor, None]:
        states, mixer = states_of(module, "lightning attention", others)
        joined = module.act_fn(module.qkv_proj(hidden_states))[0].unflatten(1, (module.num_attention_heads, -1))
        query, key, value = joined.split(module.head_dim, dim=2)
        gate = (-module.slope_rate.flatten()).expand(len(joined), -1)
        out = states.scan(mixer, linear_attention, query, key, value, gate).flatten(1)[None]
        out = module.output_gate(hidden_states).sigmoid() * module.norm(out)
        return module.out_proj(out), None

    module.forward = forward


_OWN = {"MiniMaxLightningAttention": _lightning, "RecurrentGemmaRecurrentBlock": _recurrent_gemma}
