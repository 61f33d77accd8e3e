"""Run a decoder layer in two sweeps over chunks of tokens with its mixer between them, or by `ops.decoder_layer`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fastreader.models.machine.chunking import chunks
from fastreader.models.passes.attention import KEYWORD, TreePass
from fastreader.models.rewriting.fused.attention import Angles, FusedAttention
from fastreader.models.rewriting.fused.parts import FusedFeedForward, FusedNorm, UpcastLinear
from fastreader.ops.decoder_layer import HeadNorms, Weight, decoder_layer_in, decoder_layer_out
from fastreader.ops.linear.cpu import GATE_MULTIPLE


class NormNames(NamedTuple):
    """Names of a layer's norms, or None for a norm that it lacks.

    Attributes:
        before_attention, before_feed_forward: norms of the inputs.
        after_attention, after_feed_forward: norms of what is added to the residual stream.
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


class FusedEnd(nn.Module):
    """A decoder layer that overwrites its residual stream, except in a last layer that skips rows.

    A chunk goes from the mixer's output to the next layer's input while it is in cache.

    Args:
        module: the layer it replaces; its mixer, feed-forward and norms are reused.
        mixer: name of its attention or recurrence.
        projection: the last step of the mixer, which this layer takes over.
        names: of its norms.
        factor: on what is added to the residual stream (Granite).
    """

    def __init__(
        self, module: nn.Module, mixer: str, projection: UpcastLinear, names: NormNames, factor: float
    ) -> None:
        super().__init__()
        for name, value in vars(module).items():
            if not name.startswith("_") and name != "training":
                setattr(self, name, value)  # the model's loop may read some, such as the layer's kind of attention
        self.mlp: FusedFeedForward = module.mlp  # type: ignore[assignment]
        for name in (mixer, *filter(None, names)):
            setattr(self, name, getattr(module, name))
        self._projection = (projection,)  # a part of the mixer
        self.names = names
        self.rounds = self.mlp.inner.precision == "bf16"
        self.end: EndKernels | None = None
        if names.before_feed_forward and not names.after_attention and not names.after_feed_forward and factor == 1.0:
            self.end = EndKernels.of(projection, self.mlp, getattr(module, names.before_feed_forward))
        self.factor = factor
        self._width = sum(self.mlp.inner.widths)

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Within the block, round nothing to bfloat16 outside of linear layers, which have an `exact` too."""
        kept = self.rounds, self.end
        self.rounds, self.end = False, None
        try:
            yield
        finally:
            self.rounds, self.end = kept

    def finish(self, stream: Tensor, mixed: Tensor) -> None:
        """Add the projection of the mixer's output [T, F] to the stream [T, E], then the feed-forward."""
        end = self.end
        if end is not None and stream.stride(1) == 1:
            decoder_layer_out(
                stream,
                mixed,
                end.out,
                norm=end.norm.weight,
                epsilon=end.norm.epsilon,
                inner=end.inner,
                activation=self.mlp.activation,
                down=end.down,
            )
            return
        parts = self._chunks(stream)
        for chunk in parts:
            part, rows = (stream, mixed) if len(parts) == 1 else (stream[chunk], mixed[chunk])
            self._add(part, self._projection[0], rows, self.names.after_attention)
            self._add(part, self.mlp, self._normed(part, self.names.before_feed_forward), self.names.after_feed_forward)

    def _chunks(self, stream: Tensor) -> list[slice]:
        return chunks(stream.shape[0], stream.device, self._width)

    def _normed(self, rows: Tensor, name: str | None) -> Tensor:
        """Return the input of a product: rows after the norm, rounded if the product rounds."""
        if name is None:
            return rows
        norm = getattr(self, name)
        if self.rounds and isinstance(norm, FusedNorm):
            return norm.rounded(rows)
        result: Tensor = norm(rows)
        return result

    def _add(self, part: Tensor, module: UpcastLinear | FusedFeedForward, rows: Tensor, norm: str | None) -> None:
        if norm is None and self.factor == 1.0:
            module.add_to(part, rows)
            return
        update = module.chunk(rows) if isinstance(module, FusedFeedForward) else module(rows)
        if norm is not None:
            update = getattr(self, norm)(update)
        torch.add(part, update, alpha=self.factor, out=part)


class FusedLayer(FusedEnd):
    """A decoder layer with fused attention.

    A chunk also goes from the norm to rotated queries while it is in cache, so nothing wider than a query exists for
    all tokens at once.
    """

    self_attn: FusedAttention

    def __init__(self, module: nn.Module, names: NormNames, factor: float) -> None:
        self_attn: FusedAttention = module.self_attn  # type: ignore[assignment]
        super().__init__(module, "self_attn", self_attn.o_proj, names, factor)
        self.start: StartKernels | None = None
        if self.end is not None and names.before_attention:
            self.start = StartKernels.of(self_attn, getattr(module, names.before_attention))

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Within the block, round nothing to bfloat16, see `FusedEnd.exact`."""
        kept, self.start = self.start, None
        try:
            with super().exact():
                yield
        finally:
            self.start = kept

    def forward(self, hidden_states: Tensor, position_embeddings: Angles | None = None, **others: Any) -> Tensor:
        """Change [1, T, E] in place and return it, given the arguments of transformers' layers.

        The last layer returns [1, A, E] if the pass needs only A rows.
        """
        stream = hidden_states[0]
        others.pop("past_key_values", None)
        state = others.get(KEYWORD, vars(self.self_attn).get(KEYWORD))
        rows = state.last_rows(self.self_attn.layer_idx, attending=True) if isinstance(state, TreePass) else None
        start = self.start
        if start is not None and stream.stride(1) == 1:
            query, key, value = decoder_layer_in(
                stream,
                start.norm.weight,
                start.norm.epsilon,
                start.projections,
                heads=self.self_attn.heads,
                key_heads=self.self_attn.key_heads,
                head_norms=start.head_norms,
                angles=self.self_attn.angles_of(position_embeddings),
            )
        else:
            query, key, value = self._project(stream, position_embeddings)
        if rows is not None:
            rows = rows.to(stream.device)
            stream, query = stream[rows], query[rows]
        out = self.self_attn.attend(query, key, value, **others)
        if self.self_attn.gate is not None:
            before = self.names.before_attention
            out = self.self_attn.gated(out, lambda chunk: self._normed(stream[chunk], before))
        self.finish(stream, out)
        return stream[None]

    def _project(self, stream: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor, Tensor]:
        wholes: list[Tensor] = []
        parts_of = self._chunks(stream)
        if len(parts_of) == 1:  # each view would cost as much as a launch
            return self.self_attn.project(self._normed(stream, self.names.before_attention), angles)
        for chunk in parts_of:
            chunk_angles = None if angles is None else (angles[0][:, chunk], angles[1][:, chunk])
            parts = self.self_attn.project(self._normed(stream[chunk], self.names.before_attention), chunk_angles)
            if not wholes:
                wholes = [part.new_empty(len(stream), *part.shape[1:]) for part in parts]
            for whole, part in zip(wholes, parts, strict=True):
                whole[chunk] = part
        query, key, value = wholes
        return query, key, value


@dataclass(frozen=True)
class StartKernels:
    """The parts of a layer before attention, as `ops.decoder_layer` takes them."""

    norm: FusedNorm
    projections: Weight
    head_norms: HeadNorms | None

    @classmethod
    def of(cls, attention: FusedAttention, norm: nn.Module) -> StartKernels | None:
        """Return the parts, or None if the kernels do not compute these."""
        projections = attention.projections.packed
        if not isinstance(norm, FusedNorm) or projections is None:
            return None
        if attention.norms == "none":
            return cls(norm, projections, None)
        query, key = attention.q_norm, attention.k_norm
        if not isinstance(query, FusedNorm) or not isinstance(key, FusedNorm) or query.epsilon != key.epsilon:
            return None
        return cls(norm, projections, HeadNorms(query.weight, key.weight, query.epsilon))


@dataclass(frozen=True)
class EndKernels:
    """The parts of a layer after its mixer, as `ops.decoder_layer` takes them."""

    out: Weight
    norm: FusedNorm
    inner: Weight
    down: Weight

    @classmethod
    def of(cls, projection: UpcastLinear, feed_forward: FusedFeedForward, norm: nn.Module) -> EndKernels | None:
        """Return the parts, or None if the kernels do not compute these."""
        out, inner, down = projection.packed, feed_forward.inner.packed, feed_forward.down.packed
        if not isinstance(norm, FusedNorm) or out is None or inner is None or down is None:
            return None
        alike = len({weight.packed.layout for weight in (out, inner, down)}) == 1
        return cls(out, norm, inner, down) if alike and not inner.packed.width % GATE_MULTIPLE else None


PROJECTIONS = ("o_proj", "out_proj")  # names of the last step of a mixer


class MixedLayer(FusedEnd):
    """A decoder layer whose mixer runs as it is, without its last projection.

    Args:
        module, mixer, names, factor: see `FusedEnd`.
        projection: name of the mixer's last step.
    """

    def __init__(self, module: nn.Module, mixer: str, projection: str, names: NormNames, factor: float) -> None:
        own: nn.Module = getattr(module, mixer)
        last: UpcastLinear = getattr(own, projection)
        super().__init__(module, mixer, last, names, factor)
        self._mixer = mixer
        parameters = inspect.signature(own.forward).parameters
        self._takes = None if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) else frozenset(parameters)

    def forward(self, hidden_states: Tensor, **arguments: Any) -> Tensor:
        """Change [1, T, E] in place and return it, given the arguments of transformers' layers.

        The last layer returns [1, A, E] if the pass needs only A rows.
        """
        stream, mixer = hidden_states[0], getattr(self, self._mixer)
        state = arguments.get(KEYWORD, vars(mixer).get(KEYWORD))
        arguments.pop("past_key_values", None)
        if self._takes is not None:
            arguments = {name: value for name, value in arguments.items() if name in self._takes}
        norm = self.names.before_attention
        normed = hidden_states if norm is None else getattr(self, norm)(hidden_states)
        with self._projection[0].passing():
            mixed = mixer(hidden_states=normed, **arguments)
        mixed = (mixed[0] if isinstance(mixed, tuple) else mixed)[0]
        rows = state.last_rows(mixer.layer_idx) if isinstance(state, TreePass) else None
        if rows is not None:
            rows = rows.to(stream.device)
            stream, mixed = stream[rows], mixed[rows]
        self.finish(stream, mixed)
        return stream[None]
