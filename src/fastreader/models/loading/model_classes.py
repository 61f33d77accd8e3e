"""Choose the transformers class for a checkpoint: the full class, or one without vision and audio encoders."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import torch

from fastreader.models.loading import peft_adapters
from fastreader.models.loading.text_only import AbsentEncoder, assembled, may_have_encoders, outside
from fastreader.models.rewriting import surgery


def classes_for(config: Any, trust_remote_code: bool, adapter: Path | None) -> list[Any]:
    """Return the class that loads a checkpoint, preceded by one without the parts that text does not need, if any.

    Causal LMs are registered as such; other models generate text about images or sounds. An adapter may be for any of
    the classes and for vision and audio encoders too, so it selects the full class with the modules that it names.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    known = {
        transformers.AutoModelForCausalLM: modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        transformers.AutoModelForImageTextToText: modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        transformers.AutoModelForMultimodalLM: modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING,
    }
    if trust_remote_code:
        theirs = getattr(config, "auto_map", None) or {}
        if found := [automatic for automatic in known if automatic.__name__ in theirs]:
            return found[:1]
    fitting = [automatic for automatic, mapping in known.items() if type(config) in mapping]
    if not fitting:
        return [transformers.AutoModelForCausalLM]
    kinds = [known[automatic][type(config)] for automatic in fitting]
    if adapter is not None:
        if len(set(kinds)) == 1 or any(isinstance(kind, tuple) for kind in kinds):
            return fitting[:1]
        named = [peft_adapters.named_in(_on_meta(kind, config), adapter) for kind in kinds]
        return [fitting[named.index(max(named))]]
    lean = kinds[0] if isinstance(kinds[0], tuple) else without_encoders(kinds[0], config)
    return fitting[:1] if lean is kinds[0] else [lean, fitting[0]]


def without_encoders(kind: Any, config: Any) -> Any:
    """Return a class like a transformers model class without the modules outside of its text model.

    Their weights are then not read from a checkpoint. `kind` itself is returned if it has no such modules.
    """
    alone = kind.config_class is not type(config)  # transformers makes a causal LM of the text config
    if alone or not may_have_encoders(config):
        return kind
    whole = _on_meta(kind, config)
    text = assembled(whole)
    if text is None:
        return kind
    left = [name for name, module in text.named_modules() if isinstance(module, AbsentEncoder)]
    left = left or list(outside(whole, set(text.modules())))
    if not left:
        return kind
    prefixes = tuple(f"{name}." for name in left)

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        kind.__init__(self, *arguments, **named)
        for name in left:
            self.set_submodule(name, AbsentEncoder())
        tied = self.all_tied_weights_keys.items()
        self.all_tied_weights_keys = {key: value for key, value in tied if not key.startswith(prefixes)}
        surgery.ignore_unexpected(self, [f"^{re.escape(prefix)}" for prefix in prefixes])

    # transformers looks up by the name of a class how the names of its weights have changed.
    return type(kind.__name__, (kind,), {"__init__": init, "__module__": kind.__module__})


def _on_meta(kind: Any, config: Any) -> Any:
    """Return a model of a class for a config, or for its text config if the class takes that, without weights."""
    own = config if kind.config_class is type(config) else config.get_text_config(decoder=True)
    with torch.device("meta"):
        return kind(copy.deepcopy(own))
