"""Tensors of one value in many layouts: what a kernel reads must not depend on where its rows are stored."""

from __future__ import annotations

import torch
from torch import Tensor

LAYOUTS = ("contiguous", "offset", "end of wider rows", "every second row", "rows by column", "columns first")


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """Return a tensor equal to `tensor` in the named layout. Its last value is the last of its memory.

    A read past the end is then one past the allocation, which AddressSanitizer reports.
    """
    if layout == "offset":  # no row starts where a vector would like it to
        return torch.cat([tensor.new_zeros(1), tensor.reshape(-1)])[1:].view(tensor.shape)
    if layout == "end of wider rows":
        return torch.cat([tensor.new_zeros(*tensor.shape[:-1], 3), tensor], dim=-1)[..., 3:]
    if layout == "every second row":
        return torch.stack([tensor.new_zeros(tensor.shape), tensor], dim=1)[:, 1]
    if layout == "rows by column":
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "columns first" and tensor.dim() > 2:
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    return tensor.contiguous()
