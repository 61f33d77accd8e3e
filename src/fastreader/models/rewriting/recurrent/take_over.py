"""Taking over the recurrent layers of a reader's private copy, by the functions that transformers lets kernels replace.

A mixer's forward stays transformers' own code. In the copy it runs with other functions under the names that it calls,
so nothing outside the copy changes. Projections, norms, gates and activations are the module's.
"""

from __future__ import annotations

import inspect
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from fastreader.errors import UnsupportedModelError
from fastreader.models.passes.pass_argument import WITHOUT_POSITIONS, hold_pass
from fastreader.models.rewriting.recurrent.functions import (
    MIXER,
    REPLACED,
    causal_conv1d_fn,
    check_unmasked,
    lru_scan,
    states_of,
)
from fastreader.ops.recurrent import linear_attention

_KERNELS = "hub_kernels.py"  # the file of transformers whose decorator marks replaceable functions


def mixers(model: Any) -> list[tuple[str, nn.Module]]:
    """Return the names and modules of a model's recurrent layers and short convolutions that can be taken over."""
    found = []
    for name, module in model.base_model.named_modules():
        known = type(module).__module__.startswith("transformers.models.")
        if known and (type(module).__name__ in _OWN or set(_names(module)) & set(REPLACED)):
            found.append((name, module))
    return found


def take_over(model: Any, name: str) -> list[int]:
    """Give the recurrent layers of a structural copy the recurrences of a packed pass; return the layer of each mixer.

    Args:
        model: the structural copy.
        name: of the model, for messages.

    Raises:
        UnsupportedModelError: if a layer calls a replaceable function that has no packed form.
    """
    taken = mixers(model)
    if not taken:
        return []
    for where, module in model.base_model.named_modules():
        if getattr(module, "layer_idx", 0) in (None, -1) or (where, module) in taken:
            module.layer_idx = _layer(where)
    for number, (where, module) in enumerate(taken):
        module.__dict__[MIXER] = number
        if own := _OWN.get(type(module).__name__):
            own(module)
            continue
        for called, function in _names(module).items():
            if called not in REPLACED and _replaceable(function):
                raise UnsupportedModelError(f"{name}: {where} calls {called}, which the packed pass does not compute")
        _rebind(module)
    hold_pass(model)
    if "position_ids" not in inspect.signature(model.base_model.forward).parameters:
        model.__dict__[WITHOUT_POSITIONS] = True
    return [_layer(where) for where, _ in taken]


def has_mixers(model: Any) -> bool:
    """Return whether a structural copy has recurrent layers that were taken over."""
    return any(MIXER in module.__dict__ for module in model.base_model.modules())


def reads_weight(base: Any, name: str) -> bool:
    """Return whether a linear layer is one whose weight a mixer multiplies itself, as Mamba does that of its steps."""
    where, _, own = name.rpartition(".")
    return own == "dt_proj" and MIXER in base.get_submodule(where).__dict__


def _layer(where: str) -> int:
    """Return the index of the layer that a module is in, from its name in the base model."""
    return next(int(part) for part in where.split(".") if part.isdigit())


def _names(module: nn.Module) -> dict[str, Any]:
    """Return what the forward of a module finds in its file under the names that it uses."""
    forward = inspect.unwrap(type(module).forward)
    if not isinstance(forward, FunctionType):
        return {}
    return {name: forward.__globals__[name] for name in forward.__code__.co_names if name in forward.__globals__}


def _replaceable(function: Any) -> bool:
    return getattr(getattr(function, "__code__", None), "co_filename", "").endswith(_KERNELS)


def _rebind(module: nn.Module) -> None:
    """Let a module's forward call the functions of a packed pass."""
    own = inspect.unwrap(type(module).forward)
    assert isinstance(own, FunctionType)
    scope = {**own.__globals__, **{name: partial(function, module) for name, function in REPLACED.items()}}
    scope["apply_mask_to_padding_states"] = partial(check_unmasked, module)
    forward = FunctionType(own.__code__, scope, own.__name__, own.__defaults__, own.__closure__)
    forward.__kwdefaults__ = own.__kwdefaults__
    module.forward = MethodType(forward, module)


def _recurrent_gemma(module: Any) -> None:
    """Replace the convolution and the recurrence that RecurrentGemma's block calls as modules and methods."""

    def convolve(input: Tensor) -> Tensor:
        return causal_conv1d_fn(module, input, module.conv_1d.weight.squeeze(1), module.conv_1d.bias)

    module.conv_1d.forward = convolve
    module.rg_lru._rnn_scan = partial(lru_scan, module)


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
