"""A decoder layer in two sweeps over blocks of tokens, attention between them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fastreader.models.attention import KEYWORD, TreePass
from fastreader.models.chunking import blocks_of
from fastreader.models.fused.attention import Angles, FusedAttention
from fastreader.models.fused.kernels import LayerKernels
from fastreader.models.fused.parts import FusedFeedForward, FusedNorm
from fastreader.models.linear import WideLinear

Projected = tuple[Tensor, Tensor, Tensor]


class NormNames(NamedTuple):
    """Which norm of a layer stands where; None where there is none.

    Attributes:
        before_attention, before_feed_forward: on what these read.
        after_attention, after_feed_forward: on what they add to the residual stream.
    """

    before_attention: str | None
    after_attention: str | None
    before_feed_forward: str | None
    after_feed_forward: str | None


# Norms before (Llama and most), after (OLMo2), or both (Gemma2).
NORM_SCHEMES = (
    NormNames("input_layernorm", None, "post_attention_layernorm", None),
    NormNames(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    NormNames("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
)


class FusedLayer(nn.Module):
    """A decoder layer; the residual stream it is given is overwritten, save by a last layer that leaves rows out.

    A block goes from the norm to rotated queries while it is in cache, and from attention's output to the next
    layer's input, so that nothing wider than a query exists for all tokens at once.

    Args:
        general: the layer it stands for, whose parts it takes.
        names: where its norms stand.
        factor: of what is added to the residual stream (Granite).
    """

    def __init__(self, general: nn.Module, names: NormNames, factor: float) -> None:
        super().__init__()
        for name, value in vars(general).items():
            if not name.startswith("_") and name != "training":
                setattr(self, name, value)  # the model's loop may read such as the layer's kind of attention
        self.self_attn: FusedAttention = general.self_attn  # type: ignore[assignment]
        self.mlp: FusedFeedForward = general.mlp  # type: ignore[assignment]
        for name in filter(None, names):
            setattr(self, name, getattr(general, name))
        self.names = names
        self.rounds = self.mlp.inner.precision == "fast"
        self.kernels: LayerKernels | None = None
        before = names.before_attention, names.before_feed_forward
        if None not in before and not names.after_attention and not names.after_feed_forward and factor == 1.0:
            first, second = (getattr(general, name or "") for name in before)
            self.kernels = LayerKernels.of(self.self_attn, self.mlp, first, second)
        self.factor = factor

    def forward(self, hidden_states: Tensor, position_embeddings: Angles | None = None, **others: Any) -> Tensor:
        """[1, T, E] to the same tensor, changed; the other arguments are those of transformers' layers.

        The last layer gives [1, A, E] where the pass asks for A rows only.
        """
        stream = hidden_states[0]
        others.pop("past_key_values", None)
        state = others.get(KEYWORD)
        rows = state.narrow(self.self_attn.layer_idx) if isinstance(state, TreePass) else None
        kernels = self.kernels if self.kernels is not None and self.kernels.serve(stream) else None
        if kernels is not None:
            query, key, value = kernels.before(stream, position_embeddings)
        else:
            query, key, value = self._project(stream, position_embeddings)
        if rows is not None:
            stream, query = stream[rows], query[rows]
        out = self.self_attn.attend(query, key, value, **others)
        if kernels is not None:
            kernels.after(stream, out)
            return stream[None]
        for block in self._blocks(stream):
            part = stream[block]
            self._add(part, self.self_attn.o_proj, out[block], self.names.after_attention)
            self._add(part, self.mlp, self._normed(part, self.names.before_feed_forward), self.names.after_feed_forward)
        return stream[None]

    def _project(self, stream: Tensor, angles: Angles | None) -> Projected:
        wholes: list[Tensor] = []
        blocks = self._blocks(stream)
        for block in blocks:
            turned = None if angles is None else (angles[0][:, block], angles[1][:, block])
            parts = self.self_attn.project(self._normed(stream[block], self.names.before_attention), turned)
            if len(blocks) == 1:
                return parts
            if not wholes:
                wholes = [part.new_empty(len(stream), *part.shape[1:]) for part in parts]
            for whole, part in zip(wholes, parts, strict=True):
                whole[block] = part
        query, key, value = wholes
        return query, key, value

    def _blocks(self, stream: Tensor) -> list[slice]:
        return blocks_of(len(stream), stream.device, sum(self.mlp.inner.widths))

    def _normed(self, rows: Tensor, name: str | None) -> Tensor:
        """What a product reads: rows after the norm, rounded where the product rounds."""
        if name is None:
            return rows
        norm = getattr(self, name)
        if self.rounds and isinstance(norm, FusedNorm):
            return norm.rounded(rows)
        result: Tensor = norm(rows)
        return result

    def _add(self, part: Tensor, module: WideLinear | FusedFeedForward, rows: Tensor, norm: str | None) -> None:
        if norm is None and self.factor == 1.0:
            module.add_to(part, rows)
            return
        share = module.of_block(rows) if isinstance(module, FusedFeedForward) else module(rows)
        if norm is not None:
            share = getattr(self, norm)(share)
        torch.add(part, share, alpha=self.factor, out=part)
