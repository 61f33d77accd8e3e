"""A weight in a wider type than it is stored in, which is converted only as it is used."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastreader.ops.linear.blocks import BlockStack, multiply_in_parts, run_on_values


class WidenedTensor(Tensor):
    """A weight [F, E], or experts' weights [n, F, E], a tensor of `dtype` to every op of PyTorch.

    An op gets the values when it runs; products convert a part of them at a time. It cannot be written to.

    Attributes:
        stored: the weight.
        transposed: its shape is [E, F].
    """

    stored: Tensor
    transposed: bool

    @staticmethod
    def __new__(cls, stored: Tensor, dtype: torch.dtype, transposed: bool = False) -> WidenedTensor:
        """Show a weight, transposed if it is a matrix, in another floating type."""
        size = stored.shape[::-1] if transposed else stored.shape
        made: WidenedTensor = Tensor._make_wrapper_subclass(cls, size, dtype=dtype, device=stored.device)
        made.stored, made.transposed = stored.detach(), transposed
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"WidenedTensor({list(self.shape)}, {self.stored.dtype} as {self.dtype})"

    def __deepcopy__(self, memo: dict[int, Any]) -> WidenedTensor:
        return self

    def plain(self) -> Tensor:
        """Return the values."""
        values = self.stored.to(self.dtype)
        return values.T if self.transposed else values

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return run_on_values((cls,), _SPECIAL, func, args, kwargs or {})


def _same(tensor: WidenedTensor) -> WidenedTensor:
    return WidenedTensor(tensor.stored, tensor.dtype, tensor.transposed)


def _slice(tensor: WidenedTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    if dim != 0 or step != 1 or tensor.transposed:
        return NotImplemented
    return WidenedTensor(tensor.stored[slice(start, end)], tensor.dtype)


def _select(tensor: WidenedTensor, dim: int, index: int) -> Any:
    if dim != 0 or tensor.dim() != 3:
        return NotImplemented
    stack = tensor.stored
    if isinstance(stack, BlockStack) and stack.transposed:
        return WidenedTensor(stack.parts[index], tensor.dtype, transposed=True)
    return WidenedTensor(stack[index], tensor.dtype)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not isinstance(weight, WidenedTensor) or isinstance(input, WidenedTensor) or weight.transposed:
        return NotImplemented
    return multiply_in_parts(input, weight.stored, bias)


def _matmul(input: Tensor, weight: Tensor) -> Any:
    if not isinstance(weight, WidenedTensor) or isinstance(input, WidenedTensor) or not weight.transposed:
        return NotImplemented
    return multiply_in_parts(input, weight.stored)


_SPECIAL: dict[Any, Any] = {
    torch.ops.aten.detach.default: _same,
    torch.ops.aten.alias.default: _same,
    torch.ops.aten.slice.Tensor: _slice,
    torch.ops.aten.select.int: _select,
    torch.ops.aten.linear.default: _linear,
    torch.ops.aten.mm.default: _matmul,
    torch.ops.aten.matmul.default: _matmul,  # which inference mode does not turn into mm
}
