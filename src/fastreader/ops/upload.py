"""Copy arrays to a device together: one buffer, one copy, for which the host does not wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNMENT = 16  # bytes; kernels read their tables in words of this size

Array = npt.NDArray[Any]


class Upload:
    """Arrays to copy to a device together when the first of them is needed there, or to share on the CPU.

    A pass needs a dozen small tables. Copied one by one from pageable memory, each makes the host wait.

    Args:
        device: their destination.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._waiting: list[Uploaded] = []

    def add(self, array: Array, varies: bool = False) -> Uploaded:
        """Add an array, which must not change before it is needed.

        `varies` says that its length depends on more than the number of tokens, see `StaticUpload`.
        """
        uploaded = Uploaded(self, array)
        if self.device.type == "cpu":
            uploaded.tensor = torch.from_numpy(array)
        else:
            self._waiting.append(uploaded)
        return uploaded

    def send(self) -> None:
        """Copy all arrays added since the last call, if there are any."""
        if not self._waiting:
            return
        starts, size = [], 0
        for each in self._waiting:
            starts.append(size)
            size += -(-each.array.nbytes // _ALIGNMENT) * _ALIGNMENT
        buffer = torch.empty(size, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        host = buffer.numpy()
        for start, each in zip(starts, self._waiting, strict=True):
            # By NumPy, since torch views neither a strided nor an empty array as bytes.
            host[start : start + each.array.nbytes] = np.ascontiguousarray(each.array).reshape(-1).view(np.uint8)
        there = self._arrive(buffer)
        for start, each in zip(starts, self._waiting, strict=True):
            like = torch.from_numpy(each.array)
            each.tensor = there[start : start + each.array.nbytes].view(like.dtype).view(like.shape)
        self._waiting.clear()

    def _arrive(self, buffer: Tensor) -> Tensor:
        """Return a buffer of the host on the device, without waiting for the copy."""
        # PyTorch uses pinned memory again only after the copy.
        return buffer.to(self.device, non_blocking=True)


class MisfitError(Exception):
    """Raised when arrays do not have the layout that a `StaticUpload` began with."""


class StaticUpload(Upload):
    """An upload that is filled again and again with arrays of one layout, always at the same addresses.

    Arrays of a varying length get room for some more rows, which are zeros.

    Args:
        device: their destination.

    Attributes:
        buffer: uint8 on the device, all arrays; None before the first are sent.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.buffer: Tensor | None = None
        self._layout: list[tuple[Any, tuple[int, ...]]] = []

    def add(self, array: Array, varies: bool = False) -> Uploaded:
        """Add the next array.

        Raises:
            MisfitError: if it has more rows than there is room for, or another type or shape than the one in its place.
        """
        place = len(self._waiting)
        if self.buffer is None:
            rows = with_room(len(array)) if varies else len(array)
            self._layout.append((array.dtype, (rows, *array.shape[1:])))
        dtype, shape = self._layout[place] if place < len(self._layout) else (None, ())
        fits = array.dtype == dtype and array.shape[1:] == shape[1:]
        if not fits or len(array) > shape[0] or (len(array) < shape[0] and not varies):
            raise MisfitError
        if len(array) < shape[0]:
            array = np.concatenate([array, np.zeros((shape[0] - len(array), *shape[1:]), dtype=array.dtype)])
        self._waiting.append(Uploaded(self, array))
        return self._waiting[-1]

    def again(self) -> None:
        """Begin with the first array again."""
        self._waiting.clear()

    def _arrive(self, buffer: Tensor) -> Tensor:
        if self.buffer is None:
            self.buffer = torch.empty(buffer.shape, dtype=buffer.dtype, device=self.device)
        if self.buffer.shape != buffer.shape:
            raise MisfitError
        return self.buffer.copy_(buffer, non_blocking=True)


def with_room(rows: int) -> int:
    """Return `rows` and an eighth, up to the next multiple of 64."""
    return -(-(rows + rows // 8) // 64) * 64


@dataclass(eq=False)
class Uploaded:
    """An array of an `Upload`, and its copy on the device once it was sent."""

    upload: Upload
    array: Array
    tensor: Tensor | None = None

    def get(self) -> Tensor:
        """Return the array on the device."""
        if self.tensor is None:
            self.upload.send()
        assert self.tensor is not None
        return self.tensor
