"""Quantise to Q4_K and Q6_K, for which the package gguf has no code. Plain rounding, without llama.cpp's search."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256
_AT_ONCE = 2**12  # blocks, a few megabytes of intermediate values


def quantise(values: Tensor, kind: str) -> Tensor:
    """Return the bytes of a matrix, uint8 [rows, bytes of a row].

    Args:
        values: float [rows, columns], with columns a multiple of 256.
        kind: Q4_K or Q6_K.
    """
    encode = {"Q4_K": _q4_k, "Q6_K": _q6_k}[kind]
    blocks = values.reshape(-1, BLOCK)
    coded = [encode(part.float()) for part in blocks.split(_AT_ONCE)]
    return torch.cat(coded).view(values.shape[0], -1)


def _q4_k(blocks: Tensor) -> Tensor:
    """4 bits with a scale and an offset of 6 bits for 32 values, which have one scale each in float16."""
    parts = blocks.view(-1, 8, 32)
    low = parts.amin(-1).clamp(max=0)
    scale, scales = _rounded((parts.amax(-1) - low) / 15, 63)
    offset, offsets = _rounded(-low, 63)
    step = (scale.float() * scales)[..., None]
    values = _divided(parts + (offset.float() * offsets)[..., None], step).clamp(0, 15).to(torch.uint8)
    s, o = scales.to(torch.uint8), offsets.to(torch.uint8)
    first = s[:, :4] | (s[:, 4:] >> 4) << 6
    second = o[:, :4] | (o[:, 4:] >> 4) << 6
    third = (s[:, 4:] & 15) | (o[:, 4:] & 15) << 4
    pairs = values.view(-1, 4, 2, 32)
    nibbles = (pairs[:, :, 0] | pairs[:, :, 1] << 4).flatten(1)
    return torch.cat([scale.view(torch.uint8), offset.view(torch.uint8), first, second, third, nibbles], 1)


def _q6_k(blocks: Tensor) -> Tensor:
    """6 bits with a scale of 8 bits for 16 values, which have one scale in float16."""
    parts = blocks.view(-1, 16, 16)
    scale, scales = _rounded(parts.abs().amax(-1) / 31, 127)
    step = (scale.float() * scales)[..., None]
    values = (_divided(parts, step).clamp(-32, 31) + 32).to(torch.uint8).view(-1, 2, 4, 32)
    low = ((values[:, :, :2] & 15) | (values[:, :, 2:] & 15) << 4).flatten(1)
    high = values >> 4
    high = (high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6).flatten(1)
    return torch.cat([low, high, scales.to(torch.uint8), scale.view(torch.uint8)], 1)


def _rounded(scales: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return scales as integers up to `most`, and their common factor, float16 [blocks, 1]."""
    factor = (scales.amax(-1, keepdim=True) / most).half()
    return factor, _divided(scales, factor.float()).clamp(0, most)


def _divided(values: Tensor, step: Tensor) -> Tensor:
    return torch.where(step > 0, values / step, 0.0).round()
