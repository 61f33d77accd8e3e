"""Let models whose layers are on several devices move their inputs by hooks that this package controls.

accelerate places a model and wraps its modules to move their inputs. A packed pass replaces modules and keeps weights
in other layouts, so the wrapping is removed from a copy. Hooks on the largest modules that are on one device ("units":
the embedding, each layer, the final norm, the LM head) move inputs instead.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from fastreader.errors import UnsupportedModelError
from fastreader.models.machine.devices import devices_of, moved
from fastreader.models.rewriting import surgery

_HOOK = "fastreader_inputs_moved"  # mark of a module whose inputs a hook moves: the hook's arguments


def settled(model: Any, name: str) -> Any:
    """Return a model whose weights all stay where they are, and that moves its inputs between devices.

    A model on one device without accelerate's hooks is returned as it is, any other as a copy that shares the weights.
    Parts that accelerate keeps on the CPU and loads onto a device for each call run on the CPU in the copy.

    Raises:
        UnsupportedModelError: if some weights are on a disk, or a layer is on several devices.
    """
    hooks = surgery.accelerate_hooks(model)
    if not hooks and len(devices_of(model)) < 2:
        return model
    shared: dict[int, Any] = {id(p): p for p in model.parameters()} | {id(hook): hook for hook in hooks}
    model = copy.deepcopy(model, shared)
    on_disk = surgery.remove_accelerate(model)
    if on_disk is not None:
        raise UnsupportedModelError(
            f"{name}: {on_disk} is on a disk; a packed pass keeps weights in memory: map that part to the CPU or "
            "another device"
        )
    if len(devices_of(model)) > 1:
        _add_hooks(model, surgery.unsplit_classes(model), surgery.arguments_left_in_place(model), name)
    return model


def replace_module(base: nn.Module, name: str, module: nn.Module) -> None:
    """Replace a submodule by one that takes its inputs on the same device."""
    moves = surgery.mark_of(base.get_submodule(name), _HOOK)
    base.set_submodule(name, module)
    if moves is not None:
        _add_hook(module, *moves)


def _add_hooks(module: nn.Module, unsplit: set[str], left: frozenset[str], name: str) -> None:
    found = devices_of(module)
    if len(found) > 1 and type(module).__name__ in unsplit:
        found = tuple(dict.fromkeys(parameter.device for parameter in module.parameters()))
        if len(found) > 1:
            among = ", ".join(map(str, found))
            raise UnsupportedModelError(f"{name}: {type(module).__name__} is on several devices ({among})")
        # accelerate leaves the buffers of a layer that it loads for each call on the device where the layer runs.
        surgery.replace_buffers(module, lambda buffer: moved(buffer, found[0]))
    if len(found) == 1 and not isinstance(module, (nn.ModuleList, nn.ModuleDict)):  # nobody calls a list
        _add_hook(module, found[0], left)
        return
    for child in module.children():
        _add_hooks(child, unsplit, left, name)


def _add_hook(module: nn.Module, device: torch.device, left: frozenset[str]) -> None:
    """Let a module move its inputs to a device, except the named ones, into which layers write for later layers."""

    def move(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return moved(args, device), {
            key: value if key in left else moved(value, device) for key, value in kwargs.items()
        }

    surgery.mark(module, _HOOK, (device, left))
    module.register_forward_pre_hook(move, with_kwargs=True)
