"""MXFP4 (OCP Microscaling, 2023): 32 values of four bits, [1, 2, 1], with a power of two as their scale."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK, BYTES = 32, 17  # values of a block, and its bytes in a GGUF file: the scale's exponent, then pairs of codes
_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the values, by code
_FLOAT16 = range(-24, 16)  # exponents of the powers of two in float16


def values(rows: Tensor) -> Tensor:
    """Return the values of rows of a file, uint8 [F, bytes of a row], as float32 [F, E]."""
    doubled, exponent = _parts(rows)
    return torch.ldexp(doubled.float(), exponent[:, None]).view(rows.shape[0], -1)


def fits_q5_0(rows: Tensor) -> bool:
    """Return whether rows can be stored as Q5_0, whose scales are in float16."""
    _, exponent = _parts(rows)
    return bool(((exponent >= _FLOAT16.start) & (exponent < _FLOAT16.stop)).all())


def as_q5_0(rows: Tensor) -> Tensor:
    """Return rows as rows of Q5_0, with the same values: twice the values are integers from -12 to 12.

    A block of Q5_0 has a scale in float16, the fifth bits of its values as a word, and pairs of four bits.

    Raises:
        RuntimeError: if a scale does not fit.
    """
    if not fits_q5_0(rows):
        raise RuntimeError("a scale of MXFP4 is beyond the range of float16")
    doubled, exponent = _parts(rows)
    scale = torch.exp2(exponent.double()).to(torch.float16)
    codes, half = doubled + 16, BLOCK // 2
    fifth = ((codes >> 4) << torch.arange(BLOCK)).sum(1)
    word = torch.stack([fifth >> shift & 255 for shift in (0, 8, 16, 24)], dim=1)
    pairs = (codes[:, :half] & 15) | (codes[:, half:] & 15) << 4
    parts = [scale[:, None].view(torch.uint8), word.to(torch.uint8), pairs.to(torch.uint8)]
    return torch.cat(parts, dim=1).view(rows.shape[0], -1)


def _parts(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return twice the values of each block without their scale, int64 [n, 32], and the exponent of half the scale."""
    blocks = rows.contiguous().view(-1, BYTES)
    codes = torch.cat([blocks[:, 1:] & 15, blocks[:, 1:] >> 4], dim=1).long()
    doubled = torch.tensor(_DOUBLED)[codes]
    # A block of zeros may have any exponent.
    return doubled, torch.where((doubled == 0).all(1), 0, blocks[:, 0].long() - 128)
