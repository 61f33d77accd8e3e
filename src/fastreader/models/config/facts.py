"""Facts of a model's configuration: rotary scheme, context length, LM head, and the scale and cap of its logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fastreader.core.lazy import cached_property
from fastreader.errors import ContextOverflowError, UnsupportedModelError
from fastreader.models.config import windows


@dataclass(frozen=True)
class RotaryRegimes:
    """Length rule of a rotary scheme, whose frequencies may depend on the longest sequence in the batch.

    In a packed pass a long neighbour would then change a short sequence's score, so sequences are packed only with
    others of their regime, or rejected.

    Attributes:
        kind: "fixed" (independent of length), "longrope" or "dynamic".
        threshold: number of tokens above which the frequencies change; 0 for "fixed".
    """

    kind: str
    threshold: int

    @cached_property
    def fixed(self) -> bool:
        """Whether all lengths share a regime."""
        return self.kind == "fixed"

    def of(self, length: int) -> int:
        """Return the regime of a sequence of `length` input tokens, which it shares with others of its pass.

        Raises:
            ContextOverflowError: above the threshold of a dynamic scheme. Every length has its own frequencies there,
                and transformers keeps the longest text's frequencies, so scores would depend on history.
        """
        if self.kind == "fixed" or length <= self.threshold:
            return 0
        if self.kind == "dynamic":
            raise ContextOverflowError(
                f"a prompt of {length} tokens is over {self.threshold}, above which this model's dynamic rotary "
                "embedding depends on the texts read before; shorten it, or give the model a fixed rotary scaling"
            )
        return 1


def rotary_regimes(config: Any) -> RotaryRegimes:
    """Return the length rule of a transformers config.

    Args:
        config: a text model's config; its rope_parameters are one mapping, or one for each layer type.
    """
    for scheme in _rope_schemes(config):
        kind = scheme.get("rope_type", "default")
        if kind == "dynamic":
            return RotaryRegimes(kind, int(config.max_position_embeddings))
        if kind == "longrope":
            return RotaryRegimes(kind, int(scheme["original_max_position_embeddings"]))
    return RotaryRegimes("fixed", 0)


def rope_kinds(config: Any) -> set[str]:
    """Return the names of a transformers config's rotary schemes."""
    return {str(scheme.get("rope_type", "default")) for scheme in _rope_schemes(config)}


def _rope_schemes(config: Any) -> list[dict[str, Any]]:
    parameters = getattr(config, "rope_parameters", None) or {}
    return [parameters] if "rope_type" in parameters else [p for p in parameters.values() if isinstance(p, dict)]


def context_length(config: Any, regimes: RotaryRegimes) -> int | None:
    """Return the longest input a text model's config allows, in tokens, or None if it sets no limit.

    YaRN and linear scaling extend a length that the config may state without them. Configs with a scheme for each layer
    type (Gemma 3) state the extended length.
    """
    if regimes.kind == "dynamic":
        return regimes.threshold
    names = ("max_position_embeddings", "n_positions")
    limits = [int(value) for name in names if (value := getattr(config, name, None)) is not None][:1]
    scheme = getattr(config, "rope_parameters", None) or {}
    if limits and scheme.get("rope_type") in ("yarn", "linear"):
        original = scheme.get("original_max_position_embeddings") or limits[0]
        limits = [max(limits[0], int(original * scheme.get("factor", 1)))]
    if (keys := windows.indexed_context(config)) is not None:
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
