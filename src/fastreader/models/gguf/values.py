"""The values of a GGUF file's tensors."""

from __future__ import annotations

import mmap
import os

import numpy as np
import torch
from torch import Tensor

from fastreader.errors import MissingExtraError, ModelFileError, UnsupportedModelError
from fastreader.models.gguf.header import TensorInfo
from fastreader.models.gguf.types import FLOATS
from fastreader.ops import extension
from fastreader.ops.linear import BlockWeight
from fastreader.ops.linear.blocks import FORMATS

_CHUNK = 1 << 24  # values that are computed at a time
DTYPES = {"F16": torch.float16, "F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16}


def raw_rows(tensor: TensorInfo, held: Tensor | None = None) -> Tensor:
    """Return a tensor's bytes as its file has them, uint8 [rows, bytes of a row].

    Args:
        tensor: to read.
        held: uint8, memory for the bytes; None allocates it.

    Raises:
        ModelFileError: if the file has become shorter.
    """
    held = torch.empty(tensor.size, dtype=torch.uint8) if held is None else held[: tensor.size]
    with tensor.path.open("rb", buffering=0) as stream:
        stream.seek(tensor.offset)
        view, done = held.numpy().data, 0
        while done < tensor.size:
            count = stream.readinto(view[done:])
            if not count:
                raise ModelFileError(f"{tensor.path}: truncated while {tensor.name} was read")
            done += count
    return held.view(-1, tensor.size // (_count(tensor) // tensor.shape[-1]))


def mapped(tensor: TensorInfo, dtype: torch.dtype) -> Tensor | None:
    """Return a tensor whose memory is its file's, or None if the file has it in another type or not aligned.

    Memory is copied where something writes to it, and the file never changes.

    Raises:
        ModelFileError: if the file has become shorter.
    """
    if DTYPES.get(tensor.type) != dtype or tensor.offset % dtype.itemsize:
        return None
    with tensor.path.open("rb") as stream:
        if os.fstat(stream.fileno()).st_size < tensor.offset + tensor.size:
            raise ModelFileError(f"{tensor.path}: truncated while {tensor.name} was read")
        before = tensor.offset % mmap.ALLOCATIONGRANULARITY
        size, first = before + tensor.size, tensor.offset - before
        memory = mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_COPY, offset=first)
    return torch.frombuffer(memory, dtype=dtype, count=_count(tensor), offset=before).view(tensor.shape)


def floats(tensor: TensorInfo) -> Tensor:
    """Return a small tensor in float32, float64 if the file holds that."""
    return decoded(raw_rows(tensor), tensor).view(tensor.shape)


def decoded(raw: Tensor, tensor: TensorInfo, dtype: torch.dtype | None = None) -> Tensor:
    """Return the values of rows of a tensor as [rows, values of a row], computed a part at a time.

    Args:
        raw: uint8 [rows, bytes of a row].
        tensor: whose type they have.
        dtype: to which values are rounded; None keeps float32, float64 if the file holds that.

    Raises:
        MissingExtraError: if a type needs the extra `gguf`.
        UnsupportedModelError: if nothing here knows the type.
    """
    dtype = dtype or (torch.float64 if tensor.type == "F64" else torch.float32)
    out = torch.empty(raw.shape[0], tensor.shape[-1], dtype=dtype)
    step = max(1, _CHUNK // tensor.shape[-1])
    for first in range(0, raw.shape[0], step):
        out[first : first + step] = _values(raw[first : first + step], tensor)
    return out


def _values(raw: Tensor, tensor: TensorInfo) -> Tensor:
    if tensor.type in FLOATS:
        return raw.view(DTYPES[tensor.type])
    if tensor.type in FORMATS and extension.why_missing() is None:
        return BlockWeight.pack(raw.contiguous(), tensor.type, tensor.shape[-1]).values()
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError as error:
        raise MissingExtraError("gguf", "gguf") from error
    try:
        # a scale of a random file may be infinite, which is found where the weights are used
        with np.errstate(all="ignore"):
            return torch.from_numpy(quants.dequantize(raw.numpy(), GGMLQuantizationType[tensor.type]))
    except (NotImplementedError, KeyError) as error:
        message = f"{tensor.path}: {tensor.name} has the type {tensor.type}, which the package gguf does not unpack"
        raise UnsupportedModelError(message) from error


def _count(tensor: TensorInfo) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return count
