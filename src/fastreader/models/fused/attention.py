"""Projections, rotary embedding and attention of one layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastreader.models.attention import attention_forward
from fastreader.models.fused.parts import Joined
from fastreader.models.linear import WideLinear
from fastreader.ops.pointwise import rotary

Angles = tuple[Tensor, Tensor]


class FusedAttention(nn.Module):
    """Projections, norms of queries and keys, rotary embedding and attention of one layer."""

    def __init__(
        self, general: nn.Module, projections: Joined, o_proj: WideLinear, sizes: tuple[int, int, int], norms: str
    ) -> None:
        super().__init__()
        self.layer_idx: int = general.layer_idx  # type: ignore[assignment]
        self.projections = projections
        self.heads, self.key_heads, self.head_dim = sizes
        self.norms = norms
        self.q_norm, self.k_norm = getattr(general, "q_norm", None), getattr(general, "k_norm", None)
        self.o_proj = o_proj
        self.rotates = True
        self.constants: dict[str, Any] = {}

    def project(self, rows: Tensor, angles: Angles | None, bf16: bool | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Rows [T, E] to queries [T, Hq, D], keys and values [T, Hk, D].

        Args:
            rows: after the norm.
            angles: cosine and sine, [1, T, R] each.
            bf16: round the results to bfloat16; None where the precision does.
        """
        if bf16 is None:
            bf16 = self.projections.precision == "fast"
        parts = self.projections(rows)
        if len(parts) == 1:
            widths = [self.heads * self.head_dim, *([self.key_heads * self.head_dim] * 2)]
            parts = list(torch.split(parts[0], widths, dim=1))
        if self.norms == "flat":
            parts[:2] = [self.q_norm(parts[0]), self.k_norm(parts[1])]  # type: ignore[misc]
        query, key, value = (part.unflatten(1, (-1, self.head_dim)) for part in parts)
        if self.norms == "head":
            query, key = self.q_norm(query), self.k_norm(key)  # type: ignore[misc]
        if self.rotates and angles is not None:
            cosine, sine = angles[0][0], angles[1][0]
            query, key = rotary(query, cosine, sine, bf16=bf16), rotary(key, cosine, sine, bf16=bf16)
        elif bf16:
            query, key = query.bfloat16(), key.bfloat16()
        return query, key, value.bfloat16() if bf16 else value

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Angles | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """[1, T, E] to the same; the arguments are those of transformers' attention layers."""
        query, key, value = self.project(hidden_states[0], position_embeddings)
        out = self.attend(query, key, value, attention_mask=attention_mask, **others)
        result: Tensor = self.o_proj(out[None])
        return result, None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **arguments: Any) -> Tensor:
        """Queries [T, Hq, D], keys and values [T, Hk, D] to [T, Hq * D], by way of the checks of the interface."""
        query, key, value = (x[None].transpose(1, 2) for x in (query, key, value))
        mask = arguments.pop("attention_mask", None)
        out, _ = attention_forward(self, query, key, value, mask, **self.constants, **arguments)
        return out[0].flatten(1)
