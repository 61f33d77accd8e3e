"""Replace the kernel functions that recurrent layers call, in the reader's private copy of the model.

A mixer's forward stays transformers' own code. In the copy it runs with other functions under the names that it calls,
so nothing outside the copy changes. Projections, norms, gates and activations are the module's.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from torch import Tensor, nn

from fastreader.errors import UnsupportedModelError
from fastreader.models.passes.pass_argument import WITHOUT_POSITIONS, hold_pass
from fastreader.models.rewriting import surgery
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
