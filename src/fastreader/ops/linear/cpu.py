"""Packed weights, which the C++ kernels of linear take (csrc/linear*)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fastreader.core.lazy import cached_property
from fastreader.ops import extension
from fastreader.ops.extension import LIBRARY, define
from fastreader.ops.linear.blocks import BlockTensor, BlockWeight
from fastreader.ops.linear.widened import WidenedTensor

_PANEL = 32  # rows
_TERMS_APART = ("bf16x3", "float32")  # all panels of the first bfloat16 term, then all panels of the second
GATE_MULTIPLE = 64  # rows of a gated weight come in multiples of two panels of 32
_LAYOUT = "str? input_precision, str weight_type, str isa"  # of a packed weight
LIBRARY.define("linear_pack(Tensor[] weights, str? input_precision, str isa) -> Tensor")  # type: ignore[no-untyped-call]


@define(f"linear(Tensor input, Tensor packed, int width, Tensor? bias, {_LAYOUT}) -> Tensor")
def _linear(input: Tensor, packed: Tensor, width: int, *others: Any) -> Tensor:
    return input.new_empty((input.shape[0], width), dtype=torch.float32)


@define(f"linear_add_(Tensor(a!) sum, Tensor input, Tensor packed, Tensor? bias, {_LAYOUT}) -> ()")
def _linear_add(sum: Tensor, *others: Any) -> None:
    return None


@define(
    "linear_gated(Tensor input, Tensor packed, int width, Tensor? bias, str activation, bool to_bf16, "
    f"{_LAYOUT}) -> Tensor"
)
def _linear_gated(input: Tensor, packed: Tensor, width: int, *others: Any) -> Tensor:
    to_bf16 = others[2]
    return input.new_empty((input.shape[0], width // 2), dtype=torch.bfloat16 if to_bf16 else torch.float32)


def why_not(weight: Tensor | PackedWeight, precision: str) -> str | None:
    """Return why the kernels cannot take this weight here, or None if they can, as with a packed weight."""
    if isinstance(weight, PackedWeight):
        return None
    why = extension.why_not(weight, (torch.float32, torch.bfloat16, torch.float16))
    return "float32 products are PyTorch's own" if why is None and precision == "torch" else why


@dataclass(frozen=True)
class PackedWeight:
    """A weight laid out for the CPU kernels.

    Attributes:
        data: uint8, the operand in panels of 32 rows; its layout depends on the instruction set, except for blocks.
        width: F, rows of the weight.
        depth: E, columns of the weight.
        precision: "bf16", "bf16x3", "float32" or "int16", for which it was packed.
        stored: type of the weight before: "float32", "bf16", or "blocks" if it keeps the integers of a file.
        isa: instruction set for which it was packed.
    """

    data: Tensor
    width: int
    depth: int
    precision: str
    stored: str
    isa: str

    @cached_property
    def layout(self) -> tuple[str | None, str, str]:
        """Return what ops take with `data`: input_precision, weight_type and isa."""
        return None if self.precision == "bf16" else self.precision, self.stored, self.isa


def pack_together(weights: Sequence[Tensor], precision: str) -> tuple[PackedWeight, list[PackedWeight]] | None:
    """Pack weights [F, E] of one depth and type as one weight of all their rows.

    Returns:
        The whole, and the weights as parts of its memory; None if the layout does not put whole panels in a row, as
        with integers, whose scales depend on all rows, or the kernels do not take the weights here.
    """
    if any(isinstance(weight, BlockTensor) or why_not(weight, precision) for weight in weights):
        return None
    plain = list(map(_laid_from, weights))
    alike = len({(weight.dtype, weight.shape[1]) for weight in plain}) == 1
    apart = precision == "int16" or (precision, _stored_as(plain[0])) == _TERMS_APART
    if not alike or apart or any(len(weight) % _PANEL for weight in plain):
        return None
    whole = _packed(plain, precision)
    size = len(whole.data) // whole.width  # bytes of a row
    parts = torch.split(whole.data, [len(weight) * size for weight in plain])
    return whole, [replace(whole, data=part, width=len(weight)) for part, weight in zip(parts, plain, strict=True)]


def _laid_from(weight: Tensor) -> Tensor:
    """Return a weight's values in float32, or in bfloat16 if it is stored so."""
    weight = weight.stored if isinstance(weight, WidenedTensor) else weight
    return weight.float() if weight.dtype == torch.float16 else weight


def _stored_as(weight: Tensor) -> str:
    """Return `PackedWeight.stored` of a weight in float32 or bfloat16."""
    return "bf16" if weight.dtype == torch.bfloat16 else "float32"


def pack(weight: Tensor | BlockWeight, precision: str) -> PackedWeight:
    """Pack a weight [F, E] (float32, bfloat16, float16 or blocks, which are packed already) for many products."""
    if isinstance(weight, BlockTensor):
        weight = weight.weight if weight.whole else weight.plain()
    if isinstance(weight, BlockWeight):
        isa = extension.instruction_set()
        return PackedWeight(weight.data, weight.width, weight.depth, precision, "blocks", isa)
    return _packed([_laid_from(weight)], precision)


def _packed(weights: Sequence[Tensor], precision: str) -> PackedWeight:
    isa, first = extension.instruction_set(), weights[0]
    data = torch.ops.fastreader.linear_pack(weights, None if precision == "bf16" else precision, isa)
    return PackedWeight(data, sum(map(len, weights)), first.shape[1], precision, _stored_as(first), isa)
