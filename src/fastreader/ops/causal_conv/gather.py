"""Inputs of a convolution at places of a tree or of the texts before it."""

from __future__ import annotations

import torch
from torch import Tensor


def joined(input: Tensor, initial: Tensor | None) -> Tensor:
    """Return a table of inputs [T, C], a row of zeros, and the rows of `initial` [S, n, C]."""
    before = [] if initial is None else [initial.to(input.dtype).flatten(0, 1)]
    return torch.cat([input, input.new_zeros(1, input.shape[1]), *before])


def places(ancestors: Tensor, tokens: int) -> Tensor:
    """Return the rows of that table for ancestors as `core.chains.nearest_ancestors` numbers them."""
    return torch.where(ancestors < 0, tokens - 1 - ancestors, ancestors)
