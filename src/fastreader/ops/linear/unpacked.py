"""A weight of a type that no kernel multiplies, whose values are computed only as they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastreader.ops.linear.blocks import multiply_in_parts, run_on_values


class UnpackedTensor(Tensor):
    """A weight [F, E], a float32 tensor to every op of PyTorch, which gets the values when it runs.

    Products compute a part of them at a time; the kernels' layout replaces it. It cannot be written to.

    Attributes:
        raw: uint8 [F, bytes of a row], as the file has them.
        unpack: maps rows of `raw` to their values, float32 [rows, E].
    """

    raw: Tensor
    unpack: Callable[[Tensor], Tensor]

    @staticmethod
    def __new__(cls, raw: Tensor, depth: int, unpack: Callable[[Tensor], Tensor]) -> UnpackedTensor:
        """Hold rows of a file with `depth` values each."""
        size = (raw.shape[0], depth)
        made: UnpackedTensor = Tensor._make_wrapper_subclass(cls, size, dtype=torch.float32, device=raw.device)
        made.raw, made.unpack = raw, unpack
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"UnpackedTensor({list(self.shape)})"

    def __deepcopy__(self, memo: dict[int, Any]) -> UnpackedTensor:
        return self

    def plain(self) -> Tensor:
        """Return the values."""
        return self.unpack(self.raw)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return run_on_values((cls,), _SPECIAL, func, args, kwargs or {})


def _same(tensor: UnpackedTensor) -> UnpackedTensor:
    return UnpackedTensor(tensor.raw, tensor.shape[1], tensor.unpack)


def _slice(
    tensor: UnpackedTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    if dim != 0 or step != 1:
        return NotImplemented
    return UnpackedTensor(tensor.raw[slice(start, end)], tensor.shape[1], tensor.unpack)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not isinstance(weight, UnpackedTensor) or isinstance(input, UnpackedTensor):
        return NotImplemented
    return multiply_in_parts(input, weight, bias)


_SPECIAL: dict[Any, Any] = {
    torch.ops.aten.detach.default: _same,
    torch.ops.aten.alias.default: _same,
    torch.ops.aten.slice.Tensor: _slice,
    torch.ops.aten.linear.default: _linear,
}
