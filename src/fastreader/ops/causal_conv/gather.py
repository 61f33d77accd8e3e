"""Inputs of a convolution at places of a tree or of the texts before it."""

from __future__ import annotations

import torch
from torch import Tensor


def rows_at(input: Tensor, initial: Tensor | None, places: Tensor) -> Tensor:
    """Return the rows [..., C] of inputs [T, C] and `initial` [S, n, C] at places [...].

    Place -1 gives zeros. Places are numbered as `core.chains.nearest_ancestors` does.
    """
    found = input[places.clamp_min(0)].masked_fill_((places < 0)[..., None], 0)
    if initial is None or not len(initial):
        return found
    # Chosen among, not written by a mask, whose number of places the host would wait for.
    before = initial.to(input.dtype).flatten(0, 1)[(-2 - places).clamp_min(0)]
    return torch.where((places < -1)[..., None], before, found)
