"""Copy a model's structure: new modules around the same weights."""

from __future__ import annotations

import copy
from typing import Any

from fastreader.models.rewriting import quantised


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
