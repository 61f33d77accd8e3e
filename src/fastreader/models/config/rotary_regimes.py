"""Rotary embeddings whose frequencies depend on the longest sequence in the batch.

A packed pass holds sequences of many lengths, so with such a scheme a long neighbour would change a short sequence's
score. Sequences are therefore packed only with others of their regime, or rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fastreader.errors import ContextOverflowError


@dataclass(frozen=True)
class RotaryRegimes:
    """Length rule of a rotary scheme.

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
    parameters = getattr(config, "rope_parameters", None) or {}
    schemes = [parameters] if "rope_type" in parameters else [p for p in parameters.values() if isinstance(p, dict)]
    for scheme in schemes:
        kind = scheme.get("rope_type", "default")
        if kind == "dynamic":
            return RotaryRegimes(kind, int(config.max_position_embeddings))
        if kind == "longrope":
            return RotaryRegimes(kind, int(scheme["original_max_position_embeddings"]))
    return RotaryRegimes("fixed", 0)
