"""Weights that keep the integers of a GGUF file (csrc/blocks*), and the tensor by which a model holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fastreader.errors import InputError
from fastreader.ops.extension import LIBRARY, define

# Values of a block, and its bytes in a file, by the names that GGUF gives to the formats.
FORMATS = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "Q3_K": (256, 110),  # laid out in 4 bits a value
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
    "MXFP4": (32, 17),
}
_STRIP = 32  # rows that are packed together
_MOST_PARTS = 7  # of a joined weight
AT_ONCE = 1 << 20  # values of a weight that a product in plain PyTorch converts at a time

LIBRARY.define("blocks_pack(Tensor rows, str format, int size) -> Tensor")  # type: ignore[no-untyped-call]
LIBRARY.define("blocks_join(Tensor[] parts, int[] widths, int size) -> Tensor")  # type: ignore[no-untyped-call]


@define("blocks_unpack(Tensor packed, int width, int size, int first, int count) -> Tensor")
def _unpack(packed: Tensor, width: int, size: int, first: int, count: int) -> Tensor:
    return packed.new_empty((count, size), dtype=torch.float32)


@define("blocks_rows(Tensor packed, int width, int size, Tensor ids) -> Tensor")
def _rows(packed: Tensor, width: int, size: int, ids: Tensor) -> Tensor:
    return packed.new_empty((ids.numel(), size), dtype=torch.float32)


@dataclass(frozen=True, eq=False)
class BlockWeight:
    """A weight [width, depth] as its file holds it, in the layout of the kernels, which serves every precision.

    Attributes:
        data: uint8, from the op `blocks_pack` or `blocks_join`.
        width, depth: F and E.
        formats: the names of its parts' formats, in the order of their rows.
    """

    data: Tensor
    width: int
    depth: int
    formats: tuple[str, ...]

    @classmethod
    def pack(cls, rows: Tensor, name: str, depth: int) -> BlockWeight:
        """Lay out rows of a file.

        Args:
            rows: uint8 [F, bytes of a row].
            name: a key of `FORMATS`.
            depth: E, a multiple of the format's block.

        Raises:
            RuntimeError: if the sizes do not fit, or a scale is not finite.
        """
        return cls(torch.ops.fastreader.blocks_pack(rows, name, depth), rows.shape[0], depth, (name,))

    @classmethod
    def join(cls, parts: Sequence[BlockWeight]) -> BlockWeight:
        """Concatenate the rows of weights, which number a multiple of 32 in all but the last."""
        widths = [part.width for part in parts]
        data = torch.ops.fastreader.blocks_join([part.data for part in parts], widths, parts[0].depth)
        return cls(data, sum(widths), parts[0].depth, tuple(name for part in parts for name in part.formats))

    def values(self, first: int = 0, count: int | None = None) -> Tensor:
        """Return the rows from `first` on, all by default, as float32 [count, E]."""
        count = self.width - first if count is None else count
        out: Tensor = torch.ops.fastreader.blocks_unpack(self.data, self.width, self.depth, first, count)
        return out

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows `ids`, int64 [...], as float32 [..., E]."""
        out: Tensor = torch.ops.fastreader.blocks_rows(self.data, self.width, self.depth, ids.reshape(-1))
        return out.view(*ids.shape, self.depth)


class BlockTensor(Tensor):
    """Rows of a `BlockWeight`, a float32 tensor to every op of PyTorch, which gets the values when it runs.

    Looking up rows, slicing and splitting stay cheap. It cannot be written to.
    """

    weight: BlockWeight
    first: int
    whole: bool  # it holds all rows of its weight

    @staticmethod
    def __new__(cls, weight: BlockWeight, first: int = 0, count: int | None = None) -> BlockTensor:
        """Hold rows `first` to `first` + `count`, all by default."""
        size = (weight.width - first if count is None else count, weight.depth)
        made: BlockTensor = Tensor._make_wrapper_subclass(cls, size, dtype=torch.float32, device=weight.data.device)
        made.hold(weight, first)
        return made

    def hold(self, weight: BlockWeight, first: int) -> None:
        """Take as many rows as it has from `first` on."""
        self.weight, self.first, self.whole = weight, first, self.shape[0] == weight.width

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"BlockTensor({list(self.shape)}, {' + '.join(self.weight.formats)})"

    def __deepcopy__(self, memo: dict[int, Any]) -> BlockTensor:
        return self

    def plain(self) -> Tensor:
        """Return the values, float32 [F, E]."""
        return self.weight.values(self.first, self.shape[0])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return run_on_values(_QUANTISED, _SPECIAL, func, args, kwargs or {})


class BlockStack(Tensor):
    """The matrices of a layer's experts, a float32 tensor [n, F, E] to every op of PyTorch, as a `BlockTensor` is one.

    Attributes:
        parts: n matrices [F, E].
        transposed: its shape is [n, E, F].
    """

    parts: tuple[BlockTensor, ...]
    transposed: bool

    @staticmethod
    def __new__(cls, parts: Sequence[BlockTensor], transposed: bool = False) -> BlockStack:
        """Hold matrices of one shape."""
        rows, depth = parts[0].shape
        size = (len(parts), depth, rows) if transposed else (len(parts), rows, depth)
        device = parts[0].weight.data.device
        made: BlockStack = Tensor._make_wrapper_subclass(cls, size, dtype=torch.float32, device=device)
        made.parts, made.transposed = tuple(parts), transposed
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"BlockStack({list(self.shape)}, {' + '.join(self.parts[0].weight.formats)})"

    def __deepcopy__(self, memo: dict[int, Any]) -> BlockStack:
        return self

    def plain(self) -> Tensor:
        """Return the values, float32 [n, F, E], or [n, E, F] if it is transposed."""
        values = torch.stack([part.plain() for part in self.parts])
        return values.transpose(1, 2) if self.transposed else values

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return run_on_values(_QUANTISED, _SPECIAL_OF_STACKS, func, args, kwargs or {})


_QUANTISED = (BlockTensor, BlockStack)


@torch.inference_mode(False)  # PyTorch counts versions of a view, which a tensor made in that mode has not
def run_on_values(
    kinds: tuple[type[Any], ...], special: dict[Any, Any], func: Any, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Run an op of PyTorch as `special` does it, or on the plain values of tensors of these kinds in its arguments."""
    if run := special.get(func):
        result = run(*args, **kwargs)
        if result is not NotImplemented:
            return result
    written = [arg for arg in _written(func, args, kwargs) if isinstance(arg, kinds)] if func._schema.is_mutable else []
    if written:
        raise InputError(f"{func}: expected a tensor that can be written to, got a {type(written[0]).__name__}")
    plain = pytree.tree_map_only(kinds, lambda weight: weight.plain(), (args, kwargs))
    return func(*plain[0], **plain[1])


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments that an op writes to."""
    written = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(args[i] if i < len(args) else kwargs.get(argument.name))
    return written


def _part(tensor: BlockTensor, first: int, count: int) -> BlockTensor:
    return BlockTensor(tensor.weight, tensor.first + first, count)


def _slice(tensor: BlockTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    if dim != 0 or step != 1:
        return NotImplemented
    first, last, _ = slice(start, end).indices(tensor.shape[0])
    return _part(tensor, first, max(last - first, 0))


def _split(tensor: BlockTensor, size: int, dim: int = 0) -> Any:
    if dim != 0:
        return NotImplemented
    rows = tensor.shape[0]
    return [_part(tensor, first, min(size, rows - first)) for first in range(0, rows, size)]


def _row(tensor: BlockTensor, dim: int, index: int) -> Any:
    if dim != 0:
        return NotImplemented
    return tensor.weight.values(tensor.first + index % tensor.shape[0], 1).flatten()


def _embedding(weight: BlockTensor, ids: Tensor, *_: Any) -> Any:
    return weight.weight.rows(ids.long() + weight.first)


def _index(tensor: BlockTensor, indices: Sequence[Tensor | None]) -> Any:
    if len(indices) != 1 or indices[0] is None or indices[0].dtype not in (torch.int64, torch.int32):
        return NotImplemented
    ids = indices[0].long()
    return tensor.weight.rows(torch.where(ids < 0, ids + tensor.shape[0], ids) + tensor.first)


def _index_select(tensor: BlockTensor, dim: int, ids: Tensor) -> Any:
    return _index(tensor, [ids]) if dim == 0 else NotImplemented


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not isinstance(weight, BlockTensor) or weight.numel() <= AT_ONCE:
        return NotImplemented
    return multiply_in_parts(input, weight, bias)


def _same(tensor: BlockTensor, **_: Any) -> BlockTensor:
    return _part(tensor, 0, tensor.shape[0])


def _same_stack(stack: BlockStack, **_: Any) -> BlockStack:
    return BlockStack(stack.parts, stack.transposed)


def _select(stack: BlockStack, dim: int, index: int) -> Any:
    if dim != 0:
        return NotImplemented
    part = stack.parts[index]
    return part.plain().T if stack.transposed else _same(part)


_SPECIAL: dict[Any, Any] = {
    torch.ops.aten.detach.default: _same,
    torch.ops.aten.alias.default: _same,
    torch.ops.aten.clone.default: _same,  # nothing writes to either
    torch.ops.aten.slice.Tensor: _slice,
    torch.ops.aten.split.Tensor: _split,
    torch.ops.aten.select.int: _row,
    torch.ops.aten.embedding.default: _embedding,
    torch.ops.aten.index.Tensor: _index,
    torch.ops.aten.index_select.default: _index_select,
    torch.ops.aten.linear.default: _linear,
}
_SPECIAL_OF_STACKS: dict[Any, Any] = {
    torch.ops.aten.detach.default: _same_stack,
    torch.ops.aten.alias.default: _same_stack,
    torch.ops.aten.clone.default: _same_stack,
    torch.ops.aten.select.int: _select,
}


def multiply_in_parts(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``input @ weight.T + bias`` [..., F] of float32 or float64 inputs [..., E] and any floating weight [F, E].

    `AT_ONCE` values are converted at a time. A copy of a large weight would leave the cache before it is multiplied.
    """
    rows = max(1, AT_ONCE // weight.shape[1])
    # Products of few rows are several times as fast with the weight on the left.
    columns = input.reshape(-1, input.shape[-1]).T
    out = input.new_empty(columns.shape[1], weight.shape[0])
    blocks = isinstance(weight, BlockTensor)
    held = input.new_empty(0 if blocks else min(rows, weight.shape[0]), weight.shape[1])
    for first in range(0, weight.shape[0], rows):
        part = weight[first : first + rows].detach()
        part = part.plain() if isinstance(part, BlockTensor) else held[: len(part)].copy_(part)
        # Written where it belongs: small results that stay would leave gaps between the large parts that are freed.
        out[:, first : first + rows] = torch.mm(part.to(input.dtype), columns).T
    out = out.view(*input.shape[:-1], weight.shape[0])
    return out if bias is None else out.add_(bias)


def can_join(weights: Sequence[Tensor]) -> bool:
    """Return whether `join` can concatenate the rows of these weights."""
    whole = [weight for weight in weights if isinstance(weight, BlockTensor) and weight.whole]
    parts = sum(len(weight.weight.formats) for weight in whole)
    aligned = all(weight.shape[0] % _STRIP == 0 for weight in weights[:-1])
    return len(whole) == len(weights) and parts <= _MOST_PARTS and aligned


def join(weights: Sequence[Tensor]) -> BlockWeight:
    """Concatenate the rows of weights, and let them hold their rows of the result, so that no copy remains."""
    tensors = [weight for weight in weights if isinstance(weight, BlockTensor)]
    joined, first = BlockWeight.join([tensor.weight for tensor in tensors]), 0
    for tensor in tensors:
        tensor.hold(joined, first)
        first += tensor.shape[0]
    return joined
