"""Facts of a model's configuration: context length, LM head, and the scale and cap of its logits."""

from __future__ import annotations

from typing import Any

import torch

from fastreader.errors import UnsupportedModelError
from fastreader.models.config import indexed_layers
from fastreader.models.config.rotary_regimes import RotaryRegimes


def context_length(config: Any, regimes: RotaryRegimes) -> int | None:
    """Return the longest input a text model's config allows, in tokens, or None if it sets no limit."""
    if regimes.kind == "dynamic":
        return regimes.threshold
    names = ("max_position_embeddings", "n_positions")
    limits = [int(value) for name in names if (value := getattr(config, name, None)) is not None][:1]
    if (keys := indexed_layers.covered(config)) is not None:
        limits.append(keys)
    return min(limits, default=None)


def lm_head(model: Any, name: str) -> torch.nn.Linear:
    """Return the model's output embedding, or raise UnsupportedModelError if it is not a linear layer."""
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        raise UnsupportedModelError(f"{name}: expected a linear LM head, got {type(head).__name__}")
    return head


def layer_configs(config: Any) -> list[Any]:
    """Return the configuration of each decoder layer of a text model, which is one object in most families."""
    if getattr(config, "is_heterogeneous", False):
        return list(config.per_layer_config)
    return [config] * int(config.num_hidden_layers)


def before_head(model: Any) -> torch.nn.Module | None:
    """Return what a model computes between its final states and its output embedding (ModernBERT), or None."""
    own = getattr(model, "lm_head", None)
    return own if isinstance(own, torch.nn.Module) and own is not model.get_output_embeddings() else None


def logit_scale_of(config: Any) -> float:
    """Return the factor on the logits: Cohere, Falcon-H1 and Muse multiply, Granite divides."""
    for name in ("logit_scale", "lm_head_multiplier", "output_multiplier"):
        if (factor := getattr(config, name, None)) is not None:
            return float(factor)
    if (divisor := getattr(config, "logits_scaling", None)) is not None:
        return 1.0 / float(divisor)
    return 1.0


def logit_softcap_of(config: Any) -> float | None:
    """Return the bound on the logits (Gemma, RecurrentGemma), or None."""
    return getattr(config, "final_logit_softcapping", getattr(config, "logits_soft_cap", None))
