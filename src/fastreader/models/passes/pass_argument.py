"""Give every attention call the current pass: as a forward keyword, or on the modules if the model drops keywords.

Most families pass keyword arguments on to every attention call. Where some do not (StableLM, Nemotron), the attention
modules hold the pass while it runs. They belong to a reader's private copy, which runs one pass at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from fastreader.errors import UnsupportedModelError

KEYWORD = "fastreader_pass"
_HOLDS = "fastreader_holds"
_MASKED = "fastreader_masked"
WITHOUT_POSITIONS = "fastreader_without_positions"  # on a structural copy whose forward takes no position_ids


class NotHandedDownError(UnsupportedModelError):
    """An attention call did not receive the pass."""


def run_with(model: Any, state: Any, arguments: dict[str, Any]) -> Any:
    """Return what a model's base returns when its attention modules receive a pass.

    Args:
        model: a structural copy, which remembers whether its attention modules must hold the pass.
        state: the pass.
        arguments: of the base model's forward.
    """
    base = model.base_model
    if vars(model).get(_MASKED):
        arguments["attention_mask"] = torch.zeros(1, 1, 1, 1, device=arguments["input_ids"].device)
    if _HOLDS not in vars(model):
        parameters = inspect.signature(base.forward).parameters.values()
        vars(model)[_HOLDS] = all(each.kind is not each.VAR_KEYWORD for each in parameters)
    if not vars(model)[_HOLDS]:
        try:
            return base(**arguments, **{KEYWORD: state})
        except NotHandedDownError:
            state.calls.clear()
            hold_pass(model)
    with held(base, state):
        return base(**arguments)


def hold_pass(model: Any) -> None:
    """Let the layers of a structural copy hold every pass, because not all of them receive keyword arguments."""
    vars(model)[_HOLDS] = True


def ask_for_mask(model: Any) -> None:
    """Let passes give a structural copy a mask of one value, because its forward works on the mask that it makes."""
    vars(model)[_MASKED] = True


def held(base: Any, state: Any) -> AbstractContextManager[None]:
    """Within the block, the layers of a module hold a pass."""
    holders = [module for module in base.modules() if getattr(module, "layer_idx", None) is not None]
    return marked(holders, KEYWORD, state)


@contextmanager
def marked(modules: list[nn.Module], name: str, value: Any) -> Iterator[None]:
    """Within the block, let modules carry a value under a name."""
    for module in modules:
        vars(module)[name] = value
    try:
        yield
    finally:
        for module in modules:
            del vars(module)[name]
