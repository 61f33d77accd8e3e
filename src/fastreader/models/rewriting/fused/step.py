"""Generate one token through a fused model: embedding, all layers in one call, final norm.

transformers' forward calls each layer from Python. The same modules are called here without it, if they give the same
bits: the check runs a few tokens both ways, so it depends on no list of class names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fastreader.errors import InputError
from fastreader.models.config.windows import Window
from fastreader.models.machine.devices import devices_of
from fastreader.models.passes.attention import KEYWORD
from fastreader.models.passes.query_temperature import TEMPERATURE
from fastreader.models.rewriting.draft import Draft
from fastreader.models.rewriting.fused.attention import Angles
from fastreader.models.rewriting.fused.layer import FusedLayer
from fastreader.models.rewriting.fused.trace import final_states, sample, shortened
from fastreader.ops.decoder_step import Layer, Shape, StackedLayers, StepKeys, decoder_step


@dataclass(frozen=True, eq=False)
class FusedStep:
    """The parts of a model that a step runs.

    Attributes:
        embedding: of token ids.
        rotary: returns cosine and sine from the embedded tokens and their positions.
        layers: the decoder layers.
        norm: of the final states.
        grids: how many rows of positions `rotary` takes (Qwen-VL's places in time, height and width, which are equal in
            text); None for one, without a separate dimension.
        numbers: of the model's layers that run; None for all.
    """

    embedding: nn.Module
    rotary: nn.Module
    layers: StackedLayers
    norm: nn.Module
    grids: int | None = None
    numbers: tuple[int, ...] | None = None

    @classmethod
    def of(cls, draft: Draft) -> FusedStep | str:
        """Return the step of a rewritten model, or why its texts are generated layer by layer."""
        base = draft.base
        rotary, norm = getattr(base, "rotary_emb", None), getattr(base, "norm", None)
        modules = list(getattr(base, "layers", ()))
        if not modules or not all(isinstance(module, FusedLayer) for module in modules):
            return "some layers are the model's own"
        if len(devices_of(base)) > 1:
            return "its layers are on several devices"
        if rotary is None or norm is None:
            return "its rotary embedding or final norm is not where others have it"
        layers = _layers(modules, draft.windows)
        if isinstance(layers, str):
            return layers
        step = cls(base.get_input_embeddings(), rotary, layers, norm)
        if not draft.choices.known:
            draft.choices.step = step.tried(draft)
        found = draft.choices.step
        return found if isinstance(found, str) else replace(step, grids=found)

    def tried(self, draft: Draft) -> int | str | None:
        """Return the number of grids with which the parts give the model's bits, or why none does."""
        reason = ""
        for grids in (None, 3):
            try:
                same = all(replace(self, grids=grids).gives_the_bits(draft, start) for start in draft.starts)
            except (TypeError, ValueError, IndexError) as error:
                reason = reason or f"its parts take other arguments than Llama's ({error})"
            else:
                return grids if same else "the model does more than embed, run its layers and normalise"
        return reason

    def part(self, numbers: Sequence[int]) -> FusedStep:
        """Return a step that runs only these layers of the model."""
        return replace(self, layers=self.layers.part(numbers), numbers=tuple(numbers))

    def __call__(self, token_ids: npt.NDArray[np.int64], positions: npt.NDArray[np.int32], keys: StepKeys) -> Tensor:
        """Return the final states [B, E] of one new token of each row."""
        stream, angles = self._embedded(torch.from_numpy(token_ids), torch.from_numpy(positions).long())
        decoder_step(stream[0], self.layers, (angles[0][0], angles[1][0]), keys)
        states: Tensor = self.norm(stream)
        return states[0]

    def gives_the_bits(self, draft: Draft, start: int) -> bool:
        """Return whether these parts, called one after another, give the bits of the model's forward."""
        want = draft.states[start] if start in draft.states else final_states(draft, start)
        state, tokens, positions = sample(draft, draft.products, start)
        with torch.inference_mode(), shortened(draft):
            stream, angles = self._embedded(tokens, positions)
            for module in draft.base.layers:
                stream = module(stream, position_embeddings=angles, **{KEYWORD: state})
            return torch.equal(self.norm(stream)[0], want)

    def _embedded(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Angles]:
        stream: Tensor = self.embedding(tokens[None])
        places = positions[None] if self.grids is None else positions.expand(self.grids, 1, -1)
        angles: Angles = self.rotary(stream, places)
        return stream, angles


def _layers(modules: list[FusedLayer], windows: list[Window]) -> StackedLayers | str:
    """Return the layers as the op takes them, or why it does not."""
    layers, shapes = [], set()
    for module, window in zip(modules, windows, strict=True):
        start, end, attention = module.start, module.end, module.self_attn
        constants = attention.constants
        if start is None or end is None or start.norm.epsilon != end.norm.epsilon:
            return "a layer has parts that the kernels do not compute"
        if attention.gate is not None:
            return "attention has a gate"
        if constants["s_aux"] is not None or getattr(attention, TEMPERATURE) is not None:
            return "attention has sinks or a temperature"
        if attention.half_angles:
            return "an angle is passed once for two values of a head"
        if constants["sliding_window"] != window or constants["dropout"]:
            return "attention is not called as the config says"
        scale = attention.head_dim**-0.5 if constants["scaling"] is None else constants["scaling"]
        shapes.add(
            Shape(
                attention.heads,
                attention.key_heads,
                start.norm.epsilon,
                module.mlp.activation,
                float(scale),
                constants["softcap"],
            )
        )
        layers.append(
            Layer(
                start.norm.weight,
                end.norm.weight,
                start.projections,
                start.head_norms,
                end.out,
                end.inner,
                end.down,
                attention.rotates,
            )
        )
    if len(shapes) > 1:
        return "the layers differ"
    try:
        return StackedLayers(layers, shapes.pop())
    except InputError as error:
        return str(error)
