"""MXFP4 (OCP Microscaling, 2023): 32 values of four bits, [1, 2, 1], with a power of two as their scale.

A file has the scale's exponent, then bytes of two codes, of value j below that of value j + 16. The matrix of an
expert is laid out at once, so nothing here takes more than a few bytes a value.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

BLOCK, BYTES = 32, 17  # values of a block, and its bytes
# Twice the values, by code. Codes above 8 are negative.
_DOUBLED = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), dtype=np.int8)
_LOW, _HIGH = (_DOUBLED[np.arange(256) >> shift & 15] for shift in (0, 4))  # of the two codes of a byte
_FOUR_BITS = (_LOW & 15 | (_HIGH & 15) << 4).astype(np.uint8).tobytes()  # of both integers plus 16
_FLOAT16 = range(-24, 16)  # exponents of the powers of two in float16


def values(rows: Tensor) -> Tensor:
    """Return the values of rows of a file, uint8 [F, bytes of a row], as float32 [F, E]."""
    codes, exponent = _parts(rows)
    doubled = np.concatenate([_LOW[codes], _HIGH[codes]], axis=1).astype(np.float32)
    return torch.from_numpy(np.ldexp(doubled, exponent[:, None])).view(rows.shape[0], -1)


def fits_q5_0(rows: Tensor) -> bool:
    """Return whether rows can be stored as Q5_0, whose scales are in float16."""
    _, exponent = _parts(rows)
    return bool(((exponent >= _FLOAT16.start) & (exponent < _FLOAT16.stop)).all())


def as_q5_0(rows: Tensor) -> Tensor:
    """Return rows as rows of Q5_0, with the same values: twice the values are integers from -12 to 12.

    A block of Q5_0 has a scale in float16, the fifth bits of its values as a word, and bytes of two values' other bits.

    Raises:
        RuntimeError: if a scale does not fit.
    """
    if not fits_q5_0(rows):
        raise RuntimeError("a scale of MXFP4 is beyond the range of float16")
    codes, exponent = _parts(rows)
    scale = np.ldexp(np.float32(1), exponent).astype(np.float16)[:, None].view(np.uint8)
    fifth = np.concatenate([(codes & 15) <= 8, codes < 9 << 4], axis=1)
    others = np.frombuffer(codes.tobytes().translate(_FOUR_BITS), dtype=np.uint8).reshape(codes.shape)
    parts = [scale, np.packbits(fifth, axis=1, bitorder="little"), others]
    return torch.from_numpy(np.concatenate(parts, axis=1)).view(rows.shape[0], -1)


def _parts(rows: Tensor) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Return the codes of each block, uint8 [n, 16], and the exponent of half its scale."""
    blocks = rows.contiguous().view(-1, BYTES).numpy()
    codes = blocks[:, 1:]
    some = (codes & 0x77).any(axis=1)  # a block of zeros may have any exponent
    return codes, np.where(some, blocks[:, 0].astype(np.int32) - 128, 0)
