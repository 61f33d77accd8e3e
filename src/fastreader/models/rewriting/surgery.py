"""Touch private attributes of torch, transformers and accelerate: no other file under models/ does.

A new version of one of them that renames an attribute changes this file only; `tests/models/test_surgery.py` keeps it
so. Everything here works on copies that belong to a reader, or restores what it changed.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

# Marks: values that a module carries for this package. They bypass nn.Module's registration of parts.


def mark(module: nn.Module, name: str, value: Any = True) -> None:
    """Let a module carry a value under a name."""
    vars(module)[name] = value


def mark_of(module: nn.Module, name: str) -> Any:
    """Return the value that a module carries under a name, or None."""
    return vars(module).get(name)


# Parts of a module: parameters, buffers, submodules.


def holds_own_tensors(module: nn.Module) -> bool:
    """Return whether a module declares parameters or buffers itself, outside of its submodules."""
    return bool(module._parameters or module._buffers)


def parameters_of(module: nn.Module) -> dict[str, Any]:
    """Return the mapping that holds a module's parameters, for which compressed-tensors has another class."""
    return module._parameters


def version_of(tensor: Tensor) -> int:
    """Return the number of times that a tensor was changed in place, or -1 if it does not count them."""
    return -1 if tensor.is_inference() else tensor._version


def saved_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors that a model saves, module by module, without a change to the model.

    A library's own code for saving may change the layer that it saves: bitsandbytes undoes the layout of 4-bit weights
    in place, but not that of their scales. It runs on a copy of the layer, one at a time. A weight of several tensors,
    which often cannot be copied, is shared.
    """
    for module in model.modules():
        saved: dict[str, Any] = {}
        if type(module)._save_to_state_dict is not nn.Module._save_to_state_dict:
            module = copy.deepcopy(module, {id(p): p for p in module.parameters() if hasattr(p, "__tensor_flatten__")})
        module._save_to_state_dict(saved, "", keep_vars=False)
        yield from (value for value in saved.values() if isinstance(value, Tensor))


def without_weights(module: nn.Module) -> Any:
    """Return a shallow copy of a module that shares its submodules and has no parameters, for its functions."""
    copied = copy.copy(module)
    copied._parameters, copied._modules = {}, dict(module._modules)
    return copied


def with_children(module: nn.Module, children: dict[str, nn.Module]) -> Any:
    """Return a shallow copy of a module that has other submodules."""
    copied = copy.copy(module)
    copied._modules = dict(children)
    return copied


def replace_buffers(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Replace all buffers of a module and of its submodules."""
    for part in module.modules():
        part._buffers.update({name: change(buffer) for name, buffer in part._buffers.items() if buffer is not None})


class Exchange:
    """Values of modules that were exchanged, to be put back later."""

    def __init__(self) -> None:
        self._kept: list[tuple[dict[str, Any], str, Any]] = []

    def parameters(self, module: nn.Module, change: Callable[[nn.Parameter], nn.Parameter | None]) -> None:
        """Exchange the parameters of a module, not of its submodules, for which `change` returns another."""
        self._each(module._parameters, change)

    def buffers(self, module: nn.Module, change: Callable[[Tensor], Tensor | None]) -> None:
        """Exchange the buffers of a module, not of its submodules, for which `change` returns another."""
        self._each(module._buffers, change)

    def attribute(self, values: dict[str, Any], name: str, value: Any) -> None:
        """Exchange one of the values in a namespace, such as `vars(module)`."""
        self._kept.append((values, name, values[name]))
        values[name] = value

    def restore(self) -> None:
        """Put everything back, the latest first."""
        while self._kept:
            values, name, value = self._kept.pop()
            values[name] = value

    def _each(self, values: dict[str, Any], change: Callable[[Any], Any]) -> None:
        for name, value in list(values.items()):
            if value is not None and (changed := change(value)) is not None:
                self.attribute(values, name, changed)


# Functions of a module.


def forward_of(module: nn.Module) -> FunctionType | None:
    """Return the forward function of a module's class without decorators, or None if it is not a Python function."""
    forward = inspect.unwrap(type(module).forward)
    return forward if isinstance(forward, FunctionType) else None


def names_used(function: FunctionType) -> dict[str, Any]:
    """Return what a function finds in its file, by the names that it uses."""
    scope = function.__globals__
    return {name: scope[name] for name in function.__code__.co_names if name in scope}


def file_of(function: Any) -> str:
    """Return the file that defines a function, or "" for anything else."""
    return getattr(getattr(function, "__code__", None), "co_filename", "")


def rebind(module: nn.Module, replaced: dict[str, Any]) -> None:
    """Let a module's forward, but not its class, find other functions under the names that it uses."""
    own = forward_of(module)
    assert own is not None
    forward = FunctionType(
        own.__code__, {**own.__globals__, **replaced}, own.__name__, own.__defaults__, own.__closure__
    )
    forward.__kwdefaults__ = own.__kwdefaults__
    module.forward = MethodType(forward, module)


def method_of(module: nn.Module, name: str) -> Callable[..., Any]:
    """Return a private method of a family's module."""
    method: Callable[..., Any] = getattr(module, name)
    return method


# What transformers' models say and choose.


def choose_attention(model: Any, name: str) -> str:
    """Let a function registered under a name run a model's attention, and return the name used before."""
    before: str = model.config._attn_implementation
    model.config._attn_implementation = name
    return before


def with_eager_attention(config: Any) -> Any:
    """Return a copy of a config without its choice of an attention that may not be installed, None if it has no such.

    None of transformers' implementations runs, so that it may be any.
    """
    if config._attn_implementation in (None, "eager", "sdpa"):
        return None
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"
    return config


def pre_tokenizer_settings(backend: Any) -> dict[str, Any]:
    """Return the settings of a Rust tokenizer's pre-tokenizer, as in tokenizer.json, or nothing if it has none."""
    part = getattr(backend, "pre_tokenizer", None)
    settings: dict[str, Any] = json.loads(part.__getstate__()) if part is not None else {}
    return settings


def choose_plain_experts(model: Any) -> None:
    """Let transformers' plain code run a model's experts, because grouped products have no float64."""
    if hasattr(model.config, "_experts_implementation"):
        model.config._experts_implementation = "eager"


def unsplit_classes(model: Any) -> set[str]:
    """Return the names of the classes of modules that must be on one device."""
    return set(getattr(model, "_no_split_modules", None) or ())


def arguments_left_in_place(model: Any) -> frozenset[str]:
    """Return the names of arguments that no hook may move between devices."""
    left = getattr(model, "_skip_keys_device_placement", None) or ()
    return frozenset([left] if isinstance(left, str) else left)


def share_placement(model: Any, inner: Any) -> None:
    """Give a model the placement rules of a model inside it."""
    model._no_split_modules = inner._no_split_modules
    model._skip_keys_device_placement = inner._skip_keys_device_placement


def ignore_unexpected(model: Any, patterns: list[str]) -> None:
    """Let weights whose names match patterns be unexpected in a checkpoint without a warning."""
    ignored = model._keys_to_ignore_on_load_unexpected
    # A list or None in transformers 5.0, a set later.
    together = ignored | set(patterns) if isinstance(ignored, set) else [*(ignored or ()), *patterns]
    model._keys_to_ignore_on_load_unexpected = together


def has_loaded_adapters(model: Any) -> bool:
    """Return whether transformers loaded adapters together with a model's weights."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def forget_loaded_adapters(model: Any) -> None:
    """Let transformers treat a model as one without adapters."""
    model._hf_peft_config_loaded = False


def disables_adapters(part: Any) -> bool:
    """Return whether one of peft's modules leaves its adapters out."""
    return bool(part._disable_adapters)


# accelerate's hooks.


def accelerate_hooks(model: nn.Module) -> list[Any]:
    """Return accelerate's hooks on a model's modules."""
    return [vars(module)["_hf_hook"] for module in model.modules() if "_hf_hook" in vars(module)]


def remove_accelerate(model: nn.Module) -> str | None:
    """Take accelerate's hooks off a copy and put the weights that they keep into its modules.

    The copy's hooks are the given model's. Returns the name of a weight that is on a disk; None if there is no such
    weight.
    """
    from accelerate.hooks import _accelerate_added_attributes

    made: dict[int, nn.Parameter] = {}  # by address: weights that modules share stay shared
    for where, module in model.named_modules():
        values = vars(module)
        hook = values.pop("_hf_hook", None)
        for attribute in _accelerate_added_attributes:
            values.pop(attribute, None)
        if (own := values.pop("_old_forward", None)) is not None:
            values.pop("forward", None)
            if getattr(own, "__func__", None) is not type(module).forward:
                module.forward = own
        for one in getattr(hook, "hooks", (hook,)):
            if getattr(one, "offload", False) and (missing := _restore(module, one, made)) is not None:
                return f"{where}.{missing}"
    return None


def _restore(module: nn.Module, hook: Any, made: dict[int, nn.Parameter]) -> str | None:
    """Put the weights that a hook keeps into a module, and return the name of one that is on a disk, or None."""
    from accelerate.utils import named_module_tensors

    for key, tensor in list(named_module_tensors(module, recurse=hook.place_submodules)):
        if not tensor.is_meta:
            continue
        value = _kept(hook.weights_map, key)
        if value is None:
            return str(key)
        path, _, leaf = key.rpartition(".")
        owner = module.get_submodule(path)
        if leaf in owner._buffers:
            owner._buffers[leaf] = value
        else:
            owner._parameters[leaf] = made.setdefault(value.data_ptr(), nn.Parameter(value, requires_grad=False))
    return None


def _kept(weights: Any, key: str) -> Tensor | None:
    """Return a weight that accelerate keeps in memory, or None if it is on a disk."""
    while hasattr(weights, "dataset"):  # a view of another map, under a prefix
        key, weights = f"{weights.prefix}{key}", weights.dataset
    held = getattr(weights, "state_dict", weights)
    value = held.get(key)
    return value if isinstance(value, Tensor) and not value.is_meta else None
