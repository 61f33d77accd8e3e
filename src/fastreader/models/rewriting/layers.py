"""The decoder layers of a model: find them, group them by kind, and leave some out of a pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fastreader.errors import UnsupportedModelError

_SETTINGS = (bool, int, float, str)
_INDICES = ("layer_idx", "layer_id", "layer_number", "training")


def decoder_layers(model: Any, name: str) -> list[nn.Module]:
    """Return the decoder layers of a transformers model, each once, whatever order they run in.

    Raises:
        UnsupportedModelError: if no list of modules is as long as the config says, and none has attention in each.
    """
    if found := found_layers(model):
        return found
    count = model.config.get_text_config().num_hidden_layers
    raise UnsupportedModelError(f"{name}: expected a list of {count} decoder layers, found none")


def found_layers(model: Any) -> list[nn.Module]:
    """Return the decoder layers as `decoder_layers` does, or none if there is no such list."""
    count = int(model.config.get_text_config().num_hidden_layers)
    lists = {name: part for name, part in model.base_model.named_modules() if isinstance(part, nn.ModuleList)}
    for modules in lists.values():
        if len(modules) == count:
            return list(modules)
    # LongCat has two attention modules a layer, HRM two stacks of layers.
    stacks = {name: modules for name, modules in lists.items() if all(_attends(module) for module in modules)}
    outer = [modules for name, modules in stacks.items() if not any(name.startswith(f"{other}.") for other in stacks)]
    return [module for modules in outer for module in modules]


def _attends(layer: nn.Module) -> bool:
    return any(getattr(part, "layer_idx", None) is not None for part in layer.modules())


@contextmanager
def passed_through(layers: list[nn.Module]) -> Iterator[None]:
    """Within the block, layers return their input."""

    def forward(hidden_states: Tensor, *_others: Any, **_named: Any) -> Tensor:
        return hidden_states

    kept = [(layer, vars(layer).pop("forward", None)) for layer in layers]
    for layer in layers:
        layer.forward = forward
    try:
        yield
    finally:
        for layer, own in kept:
            del layer.forward
            if own is not None:
                layer.forward = own


def kinds_of(layers: list[nn.Module]) -> list[list[int]]:
    """Return the numbers of the layers of each kind: of the same modules, shapes and settings."""
    kinds: dict[Any, list[int]] = {}
    for index, layer in enumerate(layers):
        kinds.setdefault(_kind(layer), []).append(index)
    return list(kinds.values())


def representatives(layers: list[nn.Module]) -> list[int]:
    """Return the first and the last layer of each kind."""
    return sorted({index for members in kinds_of(layers) for index in (members[0], members[-1])})


def _kind(layer: nn.Module) -> tuple[Any, ...]:
    def described(module: nn.Module) -> tuple[Any, ...]:
        values = {name: value for name, value in vars(module).items() if isinstance(value, _SETTINGS)}
        held = [(name, tuple(p.shape)) for name, p in module.named_parameters(recurse=False)]
        settings = sorted((name, repr(value)) for name, value in values.items() if name not in _INDICES)
        return type(module).__qualname__, tuple(settings), tuple(held)

    return tuple((name, described(module)) for name, module in layer.named_modules())


def shares_keys(layers: list[nn.Module]) -> bool:
    """Return whether a layer attends to the keys of another one (Gemma 3n)."""
    return any(getattr(part, "is_kv_shared_layer", False) for layer in layers for part in layer.modules())


class Chain:
    """Records whether decoder layers ran once each, in their order, each on the states that the one before returned.

    Args:
        layers: of a model that runs with these hooks.
    """

    def __init__(self, layers: list[nn.Module]) -> None:
        self.whole = True
        self._layers, self._ran = layers, 0
        self._last: Tensor | None = None

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what goes into a layer."""
        states = args[0] if args else kwargs.get("hidden_states")
        follows = self._ran == 0 or (
            isinstance(states, Tensor)
            and self._last is not None
            and states.device == self._last.device
            and torch.equal(states, self._last)
        )
        self.whole &= follows and self._ran < len(self._layers) and module is self._layers[self._ran]
        self._ran += 1

    def after(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Note what comes out of a layer."""
        states = args[0] if args else kwargs.get("hidden_states")
        same = isinstance(output, Tensor) and isinstance(states, Tensor) and output.shape == states.shape
        self.whole &= same
        self._last = output.clone() if same else None

    @property
    def complete(self) -> bool:
        """Whether every layer ran so."""
        return self.whole and self._ran == len(self._layers)
