"""Arrays that go to a device together: one buffer, one copy, for which the host does not wait."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNMENT = 16  # bytes; kernels read their tables in words of this size

Array = npt.NDArray[Any]


class Upload:
    """Arrays to copy to a device when the first of them is needed there; on the CPU they are shared, not copied.

    A pass needs a dozen small tables. Copied one by one from pageable memory, each makes the host wait.

    Args:
        device: their destination.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._waiting: list[Uploaded] = []

    def add(self, array: Array) -> Uploaded:
        """Add an array, which must not change before it is needed."""
        uploaded = Uploaded(self, array)
        if self.device.type != "cpu":
            self._waiting.append(uploaded)
        return uploaded

    def send(self) -> None:
        """Copy all arrays added since the last call."""
        starts, size = [], 0
        for each in self._waiting:
            starts.append(size)
            size += -(-each.array.nbytes // _ALIGNMENT) * _ALIGNMENT
        buffer = torch.empty(size, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        for start, each in zip(starts, self._waiting, strict=True):
            part = buffer[start : start + each.array.nbytes]
            part.copy_(torch.from_numpy(each.array).reshape(-1).view(torch.uint8))
        there = buffer.to(self.device, non_blocking=True)  # pinned memory is used again only after the copy
        for start, each in zip(starts, self._waiting, strict=True):
            like = torch.from_numpy(each.array)
            each.tensor = there[start : start + each.array.nbytes].view(like.dtype).view(like.shape)
        self._waiting.clear()


class Uploaded:
    """An array of an `Upload`."""

    def __init__(self, upload: Upload, array: Array) -> None:
        self.array, self._upload = array, upload
        self.tensor: Tensor | None = torch.from_numpy(array) if upload.device.type == "cpu" else None

    def get(self) -> Tensor:
        """Return the array on the device."""
        if self.tensor is None:
            self._upload.send()
        assert self.tensor is not None
        return self.tensor
