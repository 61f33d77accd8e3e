"""Draft: a structural copy of a model (new modules around the same weights) while it is rewritten."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fastreader.core.lazy import cached_property
from fastreader.models.config.facts import context_length, rotary_regimes
from fastreader.models.config.windows import Window, layer_windows
from fastreader.models.rewriting import experts, quantised, recurrent
from fastreader.models.rewriting.choices import Choices


def structural_copy(model: Any) -> Any:
    """Return new modules and a new config around the parameters of a transformers model, in evaluation mode."""
    from transformers import PreTrainedModel

    shared: dict[int, Any] = {id(p): p for p in model.parameters()}
    quantising = bool(quantised.method(model))
    if quantising:
        shared |= {id(module): module for module in model.modules() if quantised.is_own(module)}
    copied = copy.deepcopy(model, shared)
    if quantising:
        quantised.wrap(copied, model.dtype)
    if copied.base_model is copied:  # Llama 4's prefix is the name of its text model in the whole checkpoint
        inner = [name for name, child in copied.named_children() if isinstance(child, PreTrainedModel)]
        if len(inner) == 1:
            copied.base_model_prefix = inner[0]
    return copied.eval()


TOKENS = 6  # that a part is tried on


@dataclass
class Draft:
    """A structural copy of a model, and what its rewrites need to know.

    Attributes:
        model: the copy.
        name: for messages.
        products: how linear layers multiply, see `ops.linear`.
        upcasts: whether everything but the products runs in `dtype`, so that modules may be replaced.
        dtype: of activations, float32 or float64.
        owned: nobody else has the weights, so that they may become views of joined buffers on a GPU.
        choices: of trials; the trials fill in those that are not known.
        mixers: the layer of each recurrence or short convolution.
        routed: among how many experts each module that holds experts chooses, by the module's name.
        windows: each layer's attention window.
        layers: linear layers before they were upcast, by name in the base model.
        applied: names of the rewrites that were applied.
        states: final states of the model as it is now, by the position from which its tokens start.
        left_out: numbers of the decoder layers that trials need not run, since others of their kind do.
    """

    model: Any
    name: str
    products: str
    upcasts: bool
    dtype: torch.dtype
    owned: bool
    choices: Choices = field(default_factory=Choices)
    layers: dict[str, nn.Linear] = field(default_factory=dict)
    applied: list[str] = field(default_factory=list)
    states: dict[int, Tensor] = field(default_factory=dict)
    left_out: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mixers: list[int] = recurrent.layers_of_mixers(self.model)
        self.routed: dict[str, int] = experts.blocks(self.base)
        self.windows: list[Window] = layer_windows(self.config, self.name, frozenset(self.mixers))

    @property
    def base(self) -> Any:
        """The model without its LM head."""
        return self.model.base_model

    @cached_property
    def config(self) -> Any:
        """The text model's config."""
        return self.model.config.get_text_config()

    @cached_property
    def context(self) -> int | None:
        """Longest input that the config allows, in tokens, or None if it sets no limit."""
        return context_length(self.config, rotary_regimes(self.config))

    @property
    def starts(self) -> list[int]:
        """The positions from which a part is tried: the first, and the last ones that the config allows."""
        return [0] if self.context is None or self.context <= TOKENS else [0, self.context - TOKENS]
