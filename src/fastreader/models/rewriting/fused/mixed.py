"""MixedLayer: a decoder layer around transformers' code of its mixer, a recurrence or attention."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from fastreader.models.passes.attention import KEYWORD, TreePass
from fastreader.models.rewriting.fused.layer import FusedEnd, NormNames
from fastreader.models.rewriting.fused.parts import UpcastLinear

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
