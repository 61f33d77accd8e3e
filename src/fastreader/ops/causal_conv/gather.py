"""Inputs of a convolution at places of a tree or of the texts before it."""

from __future__ import annotations

from torch import Tensor


def rows_at(input: Tensor, initial: Tensor | None, places: Tensor) -> Tensor:
    """Return the rows [..., C] of inputs [T, C] and `initial` [S, n, C] at places [...]; zeros for -1.

    Places are numbered as `core.chains.nearest_ancestors` does.
    """
    found = input[places.clamp_min(0)]
    found[places < 0] = 0
    if initial is not None:
        outside = places < -1
        found[outside] = initial.to(input.dtype).flatten(0, 1)[-2 - places[outside]]
    return found
