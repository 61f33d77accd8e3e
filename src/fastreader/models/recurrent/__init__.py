"""Recurrent layers of hybrid readers: linear attention, state spaces and short convolutions, over a packed tree."""

from fastreader.models.recurrent.door import has_mixers, mixers, reads_weight, take_over
from fastreader.models.recurrent.states import PathStates, RecurrentStates, joined_states

__all__ = ["PathStates", "RecurrentStates", "has_mixers", "joined_states", "mixers", "reads_weight", "take_over"]
