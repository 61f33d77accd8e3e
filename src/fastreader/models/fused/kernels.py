"""A decoder layer by the kernels of `ops.decoder_layer`, where its parts are those they compute."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from fastreader.models.fused.attention import Angles, FusedAttention
from fastreader.models.fused.parts import FusedFeedForward, FusedNorm
from fastreader.ops.decoder_layer import HeadNorms, Weight, decoder_layer_in, decoder_layer_out, why_not
from fastreader.ops.linear.cpu import GATE_MULTIPLE


@dataclass(frozen=True)
class LayerKernels:
    """The parts of a layer with norms before attention and feed-forward alone, as `ops.decoder_layer` takes them."""

    attention: FusedAttention
    feed_forward: FusedFeedForward
    first: FusedNorm
    second: FusedNorm
    projections: Weight
    head_norms: HeadNorms | None
    out: Weight
    inner: Weight
    down: Weight

    @classmethod
    def of(
        cls, attention: FusedAttention, feed_forward: FusedFeedForward, first: nn.Module, second: nn.Module
    ) -> LayerKernels | None:
        """The parts, or None where these are not what the kernels compute."""
        if not isinstance(first, FusedNorm) or not isinstance(second, FusedNorm):
            return None
        projections, out = attention.projections.packed, attention.o_proj.packed
        inner, down = feed_forward.inner.packed, feed_forward.down.packed
        if projections is None or out is None or inner is None or down is None or inner.packed.width % GATE_MULTIPLE:
            return None
        head_norms = None
        if attention.norms != "none":
            query, key = attention.q_norm, attention.k_norm
            if not isinstance(query, FusedNorm) or not isinstance(key, FusedNorm) or query.epsilon != key.epsilon:
                return None
            head_norms = HeadNorms(query.weight, key.weight, query.epsilon)
        return cls(attention, feed_forward, first, second, projections, head_norms, out, inner, down)

    def serve(self, stream: Tensor) -> bool:
        """Whether they are the better way for these tokens [T, E]."""
        return why_not(stream, self.projections, self.out, self.inner, self.down) is None

    def before(self, stream: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor, Tensor]:
        """Stream [T, E] to queries [T, Hq, D], keys and values [T, Hk, D]."""
        turns = angles is not None and self.attention.rotates
        return decoder_layer_in(
            stream,
            self.first.weight,
            self.first.epsilon,
            self.projections,
            heads=self.attention.heads,
            key_heads=self.attention.key_heads,
            head_norms=self.head_norms,
            angles=(angles[0][0], angles[1][0]) if angles is not None and turns else None,
        )

    def after(self, stream: Tensor, attended: Tensor) -> None:
        """Add what follows from attention's output [T, Hq * D] to the stream in place."""
        decoder_layer_out(
            stream,
            attended,
            self.out,
            self.second.weight,
            self.second.epsilon,
            self.inner,
            self.feed_forward.activation,
            self.down,
        )
