"""Try one module of each structure, since a model's layers compute the same with other weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fastreader.models.rewriting.choices import Choices

_PLACE = "layer_idx"  # a layer's number, the only attribute that may differ
_Choice = TypeVar("_Choice")


class Trials:
    """Choices found by trial, for the modules of one structure.

    Args:
        made: choices by name, which the trials fill in, or which make them needless.
        remembers: whether modules of a known structure get the choice of the first without a trial.

    Attributes:
        remembered: number of modules that were not tried.
        ambiguous: whether several choices agreed in the last trial, as all do with weights of zero.
    """

    def __init__(self, made: Choices, remembers: bool = True) -> None:
        self._made = made
        self._remembers = remembers
        self._choices: dict[Hashable, Any] = {}
        self._failures: Counter[Hashable] = Counter()
        self.remembered = 0
        self.ambiguous = False

    def choose(
        self, name: str, module: nn.Module, choices: Iterable[_Choice], agrees: Callable[[_Choice], bool], *also: Any
    ) -> _Choice | None:
        """Return the first choice that agrees, or None.

        A choice is remembered if it is the only one that agrees. That none does is remembered from the second module
        on, since one may be at the edge of a tolerance.

        Args:
            name: of the module in the model.
            module: what is to be replaced.
            choices: its possible replacements, or what names them.
            agrees: tries one of them.
            also: what else decides how the module computes.
        """
        self.ambiguous = False
        if not self._made.known:
            self._made.made[name] = self._tried(module, choices, agrees, also)
        chosen: _Choice | None = self._made.made[name]
        return chosen

    def _tried(
        self, module: nn.Module, choices: Iterable[_Choice], agrees: Callable[[_Choice], bool], also: Any
    ) -> _Choice | None:
        key = (structure(module), _value(also))
        if self._remembers and key in self._choices:
            self.remembered += 1
            chosen: _Choice | None = self._choices[key]
            return chosen
        agreeing = [choice for choice in choices if agrees(choice)]
        self.ambiguous = len(agreeing) > 1
        self._failures[key] += not agreeing
        if len(agreeing) == 1 or self._failures[key] > 1:
            self._choices[key] = agreeing[0] if agreeing else None
        return agreeing[0] if agreeing else None


def structure(module: nn.Module) -> Hashable:
    """Return what decides how a module computes, except the values of its weights and its place among the layers."""
    own = {name: value for name, value in vars(module).items() if not name.startswith("_") and name != _PLACE}
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    children = tuple((name, structure(child)) for name, child in module.named_children())
    return type(module), _value(own), _value(dict(tensors)), children


def _value(value: Any) -> Hashable:
    """Return a value that is equal for attributes that mean the same."""
    if isinstance(value, Tensor):
        return type(value), tuple(value.shape), value.dtype, value.device
    if isinstance(value, nn.Module):
        return structure(value)
    if isinstance(value, Mapping):
        return tuple(sorted((str(key), _value(each)) for key, each in value.items() if key != _PLACE))
    if isinstance(value, (tuple, list)):
        return type(value), tuple(map(_value, value))
    if isinstance(value, partial):
        return partial, _value(value.func), _value(value.args), _value(value.keywords)
    if isinstance(value, MethodType):
        return MethodType, id(value.__func__)
    known = value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device))
    return (type(value), value) if known else (type(value), id(value))
