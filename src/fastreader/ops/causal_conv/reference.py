"""causal_conv as its definition reads, token by token: any dtype up to float64."""

from __future__ import annotations

import torch
from torch import Tensor


def causal_conv_reference(
    input: Tensor, weight: Tensor, ancestors: Tensor, bias: Tensor | None, initial: Tensor | None
) -> Tensor:
    """Return the convolution [T, C] for the arguments of `causal_conv`, in float32, or float64 if an input has it."""
    dtype = torch.promote_types(torch.promote_types(input.dtype, weight.dtype), torch.float32)
    before = input[:0] if initial is None else initial.flatten(0, 1)
    out = torch.zeros(input.shape, dtype=dtype, device=input.device)
    for token, nearest in enumerate(ancestors.tolist()):
        taps = [input[token], *(input[a] if a >= 0 else before[-2 - a] if a < -1 else None for a in nearest)]
        for tap, row in enumerate(taps):
            if row is not None:
                out[token] += weight[:, weight.shape[1] - 1 - tap].to(dtype) * row.to(dtype)
    return out if bias is None else out + bias.to(dtype)
