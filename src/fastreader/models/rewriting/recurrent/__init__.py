"""Run recurrent layers over a packed tree: linear attention, state spaces and short convolutions."""

from fastreader.models.passes.recurrent_states import PathStates, RecurrentStates, joined_states
from fastreader.models.rewriting.recurrent.take_over import (
    has_mixers,
    layers_of_mixers,
    mixers,
    reads_weight,
    take_over,
)

__all__ = [
    "PathStates",
    "RecurrentStates",
    "has_mixers",
    "joined_states",
    "layers_of_mixers",
    "mixers",
    "reads_weight",
    "take_over",
]
