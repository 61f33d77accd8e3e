"""Scale queries by their position, as Llama 4's layers without a rotary embedding do.

transformers takes a query's position from its place in the input, which in a packed tree is the place in the packing.
So the factor is applied here instead, from the positions of the pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TEMPERATURE = "fastreader_temperature"  # attribute of the attention layers that have one


@dataclass
class Temperature:
    """Queries at position p are multiplied by ``1 + factor * log(1 + floor((p + 1) / floor_scale))``.

    The equation is that of arXiv 2501.19399 as transformers' Llama 4 has it.
    """

    floor_scale: float
    factor: float

    def applied(self, query: Tensor, positions: Tensor) -> Tensor:
        """Return the queries [1, H, T, D] of tokens at positions [T], in their own type."""
        factors = torch.log1p(torch.floor((positions.float() + 1.0) / self.floor_scale)) * self.factor + 1.0
        return (query * factors[:, None]).to(query.dtype)


def is_in(model: Any) -> bool:
    """Return whether attention layers of a model scale their queries by position."""
    return bool(_scaling(model))


def leave_to_attention(model: Any) -> None:
    """Leave the temperature of a structural copy's attention layers to `attention_forward`."""
    for module in _scaling(model):
        module.attn_temperature_tuning = False
        setattr(module, TEMPERATURE, Temperature(float(module.floor_scale), float(module.attn_scale)))


def _scaling(model: Any) -> list[Any]:
    return [m for m in model.modules() if getattr(m, "attn_temperature_tuning", False) and not m.use_rope]
