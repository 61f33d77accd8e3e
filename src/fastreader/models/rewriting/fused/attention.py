"""FusedAttention: projections, rotary embedding and attention of one layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fastreader.models.machine.chunking import chunks
from fastreader.models.passes.attention import attention_forward, rounded_heads
from fastreader.models.passes.query_temperature import TEMPERATURE
from fastreader.models.rewriting.fused.parts import JoinedLinear, UpcastLinear
from fastreader.ops import triton_support
from fastreader.ops.pointwise import rotary

Angles = tuple[Tensor, Tensor]


class FusedAttention(nn.Module):
    """Projections, norms of queries and keys, rotary embedding and attention of one layer.

    Args:
        module: the attention layer it replaces.
        projections: of queries, keys and values.
        o_proj: of attention's output.
        sizes: (query heads, key heads, head size).
        norms: of queries and keys: "none", "head" (each head) or "flat" (all heads together).
        gate: a linear layer whose sigmoids are factors of the output, or None.
    """

    def __init__(
        self,
        module: nn.Module,
        projections: JoinedLinear,
        o_proj: UpcastLinear,
        sizes: tuple[int, int, int],
        norms: str,
        gate: UpcastLinear | None = None,
    ) -> None:
        super().__init__()
        self.layer_idx: int = module.layer_idx  # type: ignore[assignment]
        self.projections = projections
        self.heads, self.key_heads, self.head_dim = sizes
        self.norms = norms
        self.q_norm, self.k_norm = getattr(module, "q_norm", None), getattr(module, "k_norm", None)
        self.o_proj, self.gate = o_proj, gate
        setattr(self, TEMPERATURE, getattr(module, TEMPERATURE, None))
        self.rotates = True
        self.half_angles = False
        self.constants: dict[str, Any] = {}

    def angles_of(self, angles: Angles | None) -> Angles | None:
        """Return cosine and sine [T, R] from what the layer gets, or None if it does not rotate.

        Some models (gpt-oss) pass one for each pair of a head's values, others pass each twice.
        """
        if angles is None or not self.rotates:
            return None
        cosine, sine = angles[0][0], angles[1][0]
        if self.half_angles:
            return cosine.repeat(1, 2), sine.repeat(1, 2)
        return cosine, sine

    def project(self, rows: Tensor, angles: Angles | None, bf16: bool | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Map rows [T, E] to queries [T, Hq, D], and keys and values [T, Hk, D].

        Args:
            rows: after the norm.
            angles: cosine and sine, [1, T, R] each.
            bf16: round the results to bfloat16 as `rounded_heads` does; None does so if the precision is "bf16".
        """
        if bf16 is None:
            bf16 = self.projections.precision == "bf16"
        together = self.projections.joined and self.norms == "none"
        turns = self.angles_of(angles)
        if together and turns is not None and triton_support.on_gpu(rows.device):
            # One kernel turns queries and keys and casts values.
            heads = self.projections.whole(rows).view(len(rows), -1, self.head_dim)
            turned = self.heads + self.key_heads
            heads = rotary(heads, *turns, heads=turned, bf16=bf16)
            query, key, value = heads.split_with_sizes([self.heads, self.key_heads, self.key_heads], dim=1)
            return query, key, value
        parts = self.projections(rows)
        if len(parts) == 1:
            widths = [self.heads * self.head_dim, *([self.key_heads * self.head_dim] * 2)]
            parts = list(torch.split(parts[0], widths, dim=1))
        if self.norms == "flat":
            parts[:2] = [self.q_norm(parts[0]), self.k_norm(parts[1])]  # type: ignore[misc]
        query, key, value = (part.unflatten(1, (-1, self.head_dim)) for part in parts)
        if self.norms == "head":
            query, key = self.q_norm(query), self.k_norm(key)  # type: ignore[misc]
        if bf16:
            query, key = rounded_heads(query, turns), rounded_heads(key, turns)
        elif turns is not None:
            query, key = rotary(query, *turns), rotary(key, *turns)
        return query, key, value.bfloat16() if bf16 else value

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Angles | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """Map [1, T, E] to [1, T, E], with the arguments of transformers' attention layers."""
        query, key, value = self.project(hidden_states[0], position_embeddings)
        out = self.attend(query, key, value, attention_mask=attention_mask, **others)
        if self.gate is not None:
            out = self.gated(out, lambda chunk: hidden_states[0, chunk])
        result: Tensor = self.o_proj(out[None])
        return result, None

    def gated(self, out: Tensor, rows: Callable[[slice], Tensor]) -> Tensor:
        """Multiply attention's output [T, Hq * D] by its gates.

        Args:
            out: the output.
            rows: returns the rows [B, E] of a chunk, after the norm.
        """
        assert self.gate is not None
        result = torch.empty(out.shape, dtype=torch.float32, device=out.device)
        for chunk in chunks(len(out), out.device, out.shape[1]):
            torch.mul(self.gate(rows(chunk)).sigmoid_(), out[chunk], out=result[chunk])
        return result

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **arguments: Any) -> Tensor:
        """Map queries [T, Hq, D], keys and values [T, Hk, D] to [T, Hq * D], with the checks of the interface."""
        query, key, value = query[None].transpose(1, 2), key[None].transpose(1, 2), value[None].transpose(1, 2)
        mask = arguments.pop("attention_mask", None)
        out, _ = attention_forward(self, query, key, value, mask, **self.constants, **arguments)
        return out[0].flatten(1)
