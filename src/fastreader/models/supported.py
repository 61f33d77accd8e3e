"""State why a model cannot run packed trees, or not unchanged, or not deterministically."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from fastreader.errors import UnsupportedModelError
from fastreader.models.config import windows
from fastreader.models.config.facts import before_head
from fastreader.models.machine.devices import devices_of
from fastreader.models.rewriting.experts import kind_of
from fastreader.models.rewriting.own_scores import adds_positions, computes_scores
from fastreader.models.rewriting.quantised import method, why_not_packed
from fastreader.models.rewriting.recurrent import mixers
from fastreader.ops import extension


def refuse(name: str, reason: str | None, lead: str = "") -> None:
    """Raise UnsupportedModelError "NAME: LEAD REASON" unless `reason` is None."""
    if reason is not None:
        raise UnsupportedModelError(f"{name}: {lead}{reason}")


def why_unsupported(model: Any) -> str | None:
    """Return why the class or placement of a model rules out a packed tree, or None."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        return f"expected a transformers causal LM, got {type(model).__name__}"
    if model.config.is_encoder_decoder:
        return "expected a causal LM, got an encoder-decoder model"
    if method(model) and (reason := why_not_packed(model)) is not None:
        return reason
    if any(device.type == "meta" for device in devices_of(model)):
        return "expected weights in memory, got some on the device meta"
    if mixers(model) and len(found := devices_of(model)) > 1:
        return f"expected the recurrent layers' model on one device, got {', '.join(map(str, found))}"
    placed = "position_ids" in inspect.signature(model.base_model.forward).parameters or adds_positions(model)
    if not placed and not mixers(model):  # positions enter a recurrence only by the order of tokens
        return (
            f"{type(model.base_model).__name__} takes no position_ids, so its tokens cannot be placed on a packed "
            "tree; decoders of encoder-decoders are such"
        )
    # transformers' eager attention masks these all the same, so comparing with it would not show it.
    if getattr(model.config.get_text_config(), "use_bidirectional_attention", None) in (True, "all"):
        return "its text is read in both directions (use_bidirectional_attention)"
    if getattr(model.config.get_text_config(), "ple_layer_ids", None):
        return "embeddings of its layers depend on the tokens before each token (n-grams)"
    for where, module in model.base_model.named_modules():
        if getattr(module, "layer_idx", None) is not None and getattr(module, "is_causal", True) is False:
            return f"{where} attends in both directions (is_causal is False)"
    return None


def why_changed(model: Any) -> str | None:
    """Return why packed trees run only in a copy of a model whose modules are changed, or None."""
    if computes_scores(model):
        return "its attention modules compute scores in their own code"
    if windows.indexed_context(model.config.get_text_config()) is not None:
        return "its attention reads the keys that an index selects"
    if before_head(model) is not None:
        return "its states are transformed before the LM head"
    if mixers(model):
        return "its recurrent layers call other functions"
    if model.base_model is model:
        return "its text model is not under the name of its class"
    return None


def why_not_deterministic(model: Any, why_not_upcast: str | None, products: str) -> str | None:
    """Return which part of a model's pass sums in an order that other sequences can change, or None."""
    if why_not_upcast:
        return f"transformers' own modules run, whose sums may depend on the batch: {why_not_upcast}"
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    if (reason := extension.why_not(model.get_output_embeddings().weight, dtypes)) is not None:
        return reason
    if products == "torch":
        return "PyTorch's products sum in an order that depends on the number of rows"
    if method(model):
        return "quantised layers sum as their library does, whose order may depend on the batch"
    if mixers(model):
        return "activations of recurrent layers are PyTorch's, whose rounding may depend on the number of rows"
    if any(map(kind_of, model.base_model.modules())):
        return "the router of a mixture of experts is PyTorch's, whose rounding may depend on the number of rows"
    return None
