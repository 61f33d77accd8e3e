"""The transformers class that loads a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastreader.models import adapters
from fastreader.models.text import on_meta, without_towers


def classes_for(config: Any, trust_remote_code: bool, adapter: Path | None) -> list[Any]:
    """Return the class that loads a checkpoint, after one that leaves out what text does not run through, if any.

    Causal LMs are known by that name; others write text about images or sounds. With an adapter, which may be for any
    of the classes and for towers too, it is the whole class that has the modules of the adapter's names.
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
        named = [adapters.named_in(on_meta(kind, config), adapter) for kind in kinds]
        return [fitting[named.index(max(named))]]
    lean = kinds[0] if isinstance(kinds[0], tuple) else without_towers(kinds[0], config)
    return fitting[:1] if lean is kinds[0] else [lean, fitting[0]]
