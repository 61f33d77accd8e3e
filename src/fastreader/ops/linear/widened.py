"""A weight in a wider type than it is stored in, which is converted only as it is used."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastreader.ops.linear.blocks import multiply_in_parts, run_on_values


class WidenedTensor(Tensor):
    """A weight [F, E], a tensor of `dtype` to every op of PyTorch, which gets the values when it runs.

    Products convert a part of it at a time. It cannot be written to.
    """

    stored: Tensor

    @staticmethod
    def __new__(cls, stored: Tensor, dtype: torch.dtype) -> WidenedTensor:
        """Show a weight in another floating type."""
        made: WidenedTensor = Tensor._make_wrapper_subclass(cls, stored.shape, dtype=dtype, device=stored.device)
        made.stored = stored.detach()
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"WidenedTensor({list(self.shape)}, {self.stored.dtype} as {self.dtype})"

    def __deepcopy__(self, memo: dict[int, Any]) -> WidenedTensor:
        return self

    def plain(self) -> Tensor:
        """Return the values."""
        return self.stored.to(self.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return run_on_values((cls,), _SPECIAL, func, args, kwargs or {})


def _same(tensor: WidenedTensor) -> WidenedTensor:
    return WidenedTensor(tensor.stored, tensor.dtype)


def _slice(tensor: WidenedTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    if dim != 0 or step != 1:
        return NotImplemented
    return WidenedTensor(tensor.stored[slice(start, end)], tensor.dtype)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not isinstance(weight, WidenedTensor) or isinstance(input, WidenedTensor):
        return NotImplemented
    return multiply_in_parts(input, weight.stored, bias)


_SPECIAL: dict[Any, Any] = {
    torch.ops.aten.detach.default: _same,
    torch.ops.aten.alias.default: _same,
    torch.ops.aten.slice.Tensor: _slice,
    torch.ops.aten.linear.default: _linear,
}
