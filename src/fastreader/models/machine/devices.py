"""Models whose layers lie on several devices: where a map puts them, and what moves between two of them.

accelerate places a model and wraps its modules to move their inputs. A packed pass replaces modules and keeps weights
in layouts of its own, so the wrapping is taken off a copy, and hooks on the largest modules that lie on one device
("units": the embedding, each layer, the final norm, the LM head) move inputs instead.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from fastreader.core.checks import expect, rejecting
from fastreader.errors import InputError, UnsupportedModelError

_SEAM = "fastreader_seam"
AUTOMATIC = ("auto", "balanced", "balanced_low_0", "sequential")


def devices_of(module: nn.Module) -> tuple[torch.device, ...]:
    """Return the devices of a module's parameters and buffers, each once, in the order of the modules."""
    return tuple(dict.fromkeys(tensor.device for tensor in chain(module.parameters(), module.buffers())))


def main_device(model: nn.Module) -> torch.device:
    """Return the first device of a model that is not the CPU, or the CPU."""
    found = devices_of(model)
    return next((device for device in found if device.type != "cpu"), found[0])


def check_map(device_map: Any) -> None:
    """Raise InputError if a value is no device map, or puts weights where no pass can read them."""
    if not isinstance(device_map, Mapping):
        named = isinstance(device_map, str) and device_map in AUTOMATIC
        expect(named, "device_map", f"one of {', '.join(AUTOMATIC)}, a mapping or None", device_map)
        return
    expect(len(device_map) > 0, "device_map", "a device for each part of the model", dict(device_map))
    for part, device in device_map.items():
        expect(str(device) != "disk", "device_map", "weights in memory: a packed pass keeps them there", {part: device})
        with rejecting(f"device_map: expected devices, got {part!r}: {device!r}", RuntimeError, TypeError):
            kind = torch.device(device).type
        expect(kind != "meta", "device_map", "devices that hold weights", {part: device})


def renamed(device_map: Any, whole: Any, part: Any) -> Any:
    """Return a map of a whole model with the names that its modules have in a model over a part of them.

    Modules of which that model has nothing are left out. A map by name, and one of the part's own names, stay.

    Args:
        device_map: as for `place`.
        whole: the model that the map may be for.
        part: a model that shares modules with it.
    """
    own = {module: name for name, module in part.named_modules()}
    if part is whole or isinstance(device_map, str) or set(device_map) <= set(own.values()):
        return device_map
    named = dict(whole.named_modules())
    found: dict[str, Any] = {}

    def add(module: nn.Module, device: Any) -> None:
        if module in own:
            found[own[module]] = device
        else:
            for child in module.children():
                add(child, device)

    for name, device in sorted(device_map.items(), key=lambda item: len(item[0])):
        if name in named:
            add(named[name], device)
        else:
            found[name] = device
    return found


def place(model: Any, device_map: Any, name: str) -> Any:
    """Return a loaded model, which is used up, with its parts where a map puts them.

    Args:
        model: a transformers model on the CPU.
        device_map: as `Reader.load` takes it; a name lets accelerate choose by the free memory of each device.
        name: of the model, for messages.

    Raises:
        InputError: if the map leaves out a part of the model, or puts weights on a disk or a device that is missing.
        UnsupportedModelError: if the map splits a layer.
    """
    from accelerate import infer_auto_device_map
    from accelerate.utils import (
        check_device_map,
        find_tied_parameters,
        get_balanced_memory,
        retie_parameters,
        set_module_tensor_to_device,
    )

    if isinstance(device_map, str):
        whole = list(_whole(model))
        memory = None
        if device_map != "sequential":
            low = device_map == "balanced_low_0"
            memory = get_balanced_memory(model, no_split_module_classes=whole, low_zero=low)
        device_map = infer_auto_device_map(model, memory, no_split_module_classes=whole)
        check_map(device_map)
    try:
        check_device_map(model, device_map)
        tied = find_tied_parameters(model)
        for part, device in sorted(device_map.items(), key=lambda item: len(item[0])):
            module = model
            for attribute in filter(None, part.split(".")):
                module = getattr(module, attribute)
            if isinstance(module, nn.Module):
                module.to(device)
            else:
                set_module_tensor_to_device(model, part, device)
        retie_parameters(model, tied)
    except (ValueError, AttributeError) as error:
        raise InputError(f"device_map: expected one for {name}, got {dict(device_map)}: {error}") from error
    return settled(model, name)


def settled(model: Any, name: str) -> Any:
    """Return a model whose weights all lie where they are kept, and that moves its inputs between devices itself.

    A model on one device without accelerate's hooks is returned as it is. Otherwise a copy is returned, which shares
    the weights: parts that accelerate keeps on the CPU and loads onto a device for each call run on the CPU.

    Raises:
        UnsupportedModelError: if some weights are on a disk, or a layer lies on several devices.
    """
    hooked = [module for module in model.modules() if hasattr(module, "_hf_hook")]
    if not hooked and len(devices_of(model)) < 2:
        return model
    shared: dict[int, Any] = {id(p): p for p in model.parameters()}
    shared |= {id(module._hf_hook): module._hf_hook for module in hooked}
    model = copy.deepcopy(model, shared)
    _unhook(model, name)
    if len(devices_of(model)) > 1:
        left = getattr(model, "_skip_keys_device_placement", None) or ()
        _add_seams(model, _whole(model), frozenset([left] if isinstance(left, str) else left), name)
    return model


def replace(base: nn.Module, name: str, module: nn.Module) -> None:
    """Replace a submodule by one that takes its inputs on the same device."""
    seam = base.get_submodule(name).__dict__.get(_SEAM)
    base.set_submodule(name, module)
    if seam is not None:
        _add_seam(module, *seam)


@contextmanager
def placed(model: nn.Module, name: str) -> Iterator[None]:
    """Within the block, name a model on several devices of which parts meet that no seam brings together.

    Raises:
        UnsupportedModelError: if tensors on two devices meet.
    """
    try:
        yield
    except (RuntimeError, InputError) as error:
        found = devices_of(model)
        if len(found) < 2 or isinstance(error, torch.OutOfMemoryError):
            raise
        among = ", ".join(map(str, found))
        raise UnsupportedModelError(f"{name}: its parts cannot lie on several devices ({among}) so: {error}") from error


def moved(value: Any, device: torch.device) -> Any:
    """Return a value with the tensors in it on a device; tuples, lists and dicts are looked into."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(moved(item, device) for item in value)
    if type(value) is dict:
        return {key: moved(item, device) for key, item in value.items()}
    return value


def _whole(model: Any) -> set[str]:
    """Return the names of classes whose modules lie on one device, as transformers knows them."""
    return set(getattr(model, "_no_split_modules", None) or ())


def _add_seams(module: nn.Module, whole: set[str], left: frozenset[str], name: str) -> None:
    found = devices_of(module)
    if len(found) > 1 and type(module).__name__ in whole:
        found = tuple(dict.fromkeys(parameter.device for parameter in module.parameters()))
        if len(found) > 1:
            among = ", ".join(map(str, found))
            raise UnsupportedModelError(f"{name}: {type(module).__name__} lies on several devices ({among})")
        for part in module.modules():  # accelerate leaves those of a layer that it loads for each call where it runs
            part._buffers.update({key: moved(buffer, found[0]) for key, buffer in part._buffers.items()})
    if len(found) == 1 and not isinstance(module, (nn.ModuleList, nn.ModuleDict)):  # nobody calls a list
        _add_seam(module, found[0], left)
        return
    for child in module.children():
        _add_seams(child, whole, left, name)


def _add_seam(module: nn.Module, device: torch.device, left: frozenset[str]) -> None:
    """Let a module move its inputs to a device, all but the named ones, into which layers write for later layers."""

    def move(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return moved(args, device), {
            key: value if key in left else moved(value, device) for key, value in kwargs.items()
        }

    module.__dict__[_SEAM] = device, left
    module.register_forward_pre_hook(move, with_kwargs=True)


def _unhook(model: Any, name: str) -> None:
    """Take accelerate's hooks off a copy, whose hooks are those of the given model, and put weights in their places."""
    from accelerate.hooks import _accelerate_added_attributes
    from accelerate.utils import named_module_tensors

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
            if not getattr(one, "offload", False):
                continue
            for key, tensor in list(named_module_tensors(module, recurse=one.place_submodules)):
                if not tensor.is_meta:
                    continue
                value = _kept(one.weights_map, key)
                if value is None:
                    raise UnsupportedModelError(
                        f"{name}: {where}.{key} is on a disk; a packed pass keeps weights in memory: map that part to "
                        "the CPU or another device"
                    )
                path, _, leaf = key.rpartition(".")
                owner = module.get_submodule(path)
                if leaf in owner._buffers:
                    owner._buffers[leaf] = value
                else:
                    owner._parameters[leaf] = made.setdefault(
                        value.data_ptr(), nn.Parameter(value, requires_grad=False)
                    )


def _kept(weights: Any, key: str) -> Tensor | None:
    """Return a weight that accelerate keeps in memory, or None if it is on a disk."""
    while hasattr(weights, "dataset"):  # a view of another map, under a prefix
        key, weights = f"{weights.prefix}{key}", weights.dataset
    held = getattr(weights, "state_dict", weights)
    value = held.get(key)
    return value if isinstance(value, Tensor) and not value.is_meta else None
