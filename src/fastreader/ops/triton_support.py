"""Decisions shared by the Triton implementations: whether they can run, and for which device they are configured.

Functions import Triton themselves, so that `import fastreader` does not.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable
from functools import cache, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from fastreader.ops.extension import LIBRARY, define
from fastreader.ops.operands import name_of

TARGETS = (80, 89, 90, 100, 120)  # compute capabilities with pinned configurations
_MAX_SIZE = 512
P = ParamSpec("P")
R = TypeVar("R")
Operands = TypeVar("Operands", bound=NamedTuple)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@cache
def interpreting() -> bool:
    """Return whether kernels run in Triton's interpreter, on the CPU (TRITON_INTERPRET=1)."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


@cache
def _missing() -> str | None:
    return None if importlib.util.find_spec("triton") else "the triton package is not installed"


def on_gpu(device: torch.device) -> bool:
    """Return whether a device runs the Triton kernels."""
    return device.type == "cuda"


def capability(device: torch.device) -> int:
    """Return the compute capability of a CUDA device, as major * 10 + minor."""
    return _capability(_index(device))


def _index(device: torch.device) -> int:
    """Return the index of a CUDA device, the current index for a device without one."""
    return torch.cuda.current_device() if device.index is None else device.index


@cache
def _capability(index: int) -> int:
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor


def why_not(tensor: Tensor, size: int = 1) -> str | None:
    """Return why the Triton kernels cannot take this tensor with values of this size, or None if they can."""
    if (missing := _missing()) is not None:
        return missing
    if tensor.dtype not in _DTYPES:
        return f"it takes float16, bfloat16 or float32, got {name_of(tensor.dtype)}"
    if size > _MAX_SIZE:
        return f"it takes value sizes up to {_MAX_SIZE}, got {size}"
    if interpreting():
        return None
    if not on_gpu(tensor.device):
        return f"it needs a CUDA device, got {tensor.device} (on the CPU set TRITON_INTERPRET=1 to interpret it)"
    found = capability(tensor.device)
    return None if found >= 80 else f"it needs compute capability 8.0 or later, got {found // 10}.{found % 10}"


def why_not_all(tensors: Iterable[Tensor | None]) -> str | None:
    """Return why the Triton kernels cannot take one of these tensors of any supported types, or None if they can."""
    return next(filter(None, (why_not(tensor) for tensor in tensors if tensor is not None)), None)


def target_of(device: torch.device) -> int:
    """Return the entry of `TARGETS` whose configurations fit the device."""
    if not on_gpu(device):
        return TARGETS[0]  # the interpreter takes any of them
    return nearest_target(capability(device))


def nearest_target(capability: int) -> int:
    """Return the entry of `TARGETS` for a compute capability, given as major * 10 + minor.

    8.6 and 8.7 take the configurations of 8.9, since they have at least its shared memory, unlike that of 8.0.
    """
    if capability in (86, 87):
        return 89
    return max(target for target in TARGETS if target <= capability)


def processors(device: torch.device) -> int:
    """Return the number of streaming multiprocessors of the device, 4 in the interpreter."""
    return _processors(_index(device)) if on_gpu(device) else 4


@cache
def _processors(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def ceil_div(number: int, by: int) -> int:
    """Return ``number / by`` rounded up, faster on the host than `triton.cdiv`."""
    return -(-number // by)


def power_of_2(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << max(number - 1, 0).bit_length()


def rows_apart(tensor: Tensor) -> Tensor:
    """Return the tensor with the values of its last axis next to each other."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def with_near_tiles(tensor: Tensor, extents: tuple[int, ...]) -> Tensor:
    """Return the tensor, or a contiguous copy if offsets inside a tile of these extents would not fit 32 bits.

    Kernels address a tile with 64 bits and its elements with 32 from there. Only unusual layouts come near the limit,
    such as a head size outermost in a very long tensor.
    """
    reach = 0
    for extent, stride in zip(extents, tensor.stride(), strict=True):
        reach += (extent - 1) * stride
    return tensor if reach < 2**31 else tensor.contiguous()


@cache
def compiler_options(num_warps: int, num_stages: int, max_registers: int = 0) -> dict[str, Any]:
    """Return the compiler's options of a launch, made once, without a maximum of registers if it is 0."""
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}
    return options | {"maxnreg": max_registers} if max_registers else options


@cache
def _single() -> bool:
    return torch.cuda.device_count() == 1


def on_its_device(function: Callable[Concatenate[Tensor, P], R]) -> Callable[Concatenate[Tensor, P], R]:
    """Run a function with the device of its first tensor as the current one, on which Triton launches."""

    @wraps(function)
    def run(tensor: Tensor, /, *others: P.args, **named: P.kwargs) -> R:
        if not tensor.is_cuda or _single():
            return function(tensor, *others, **named)
        with torch.cuda.device_of(tensor):  # type: ignore[no-untyped-call]
            return function(tensor, *others, **named)

    return run


def triton_op(
    name: str, operands: type[Operands], results: int, fake: Callable[[Operands], Any]
) -> Callable[[Callable[[Operands], R]], Callable[[Operands], R]]:
    """Register a function that launches Triton kernels as the op ``fastreader::<name>``.

    It serves CUDA tensors, and in the interpreter tensors on the CPU. The decorated function launches without the
    dispatcher, which takes as long as a launch, unless something follows the operators (torch.compile, fake tensors).

    Args:
        name: of the op.
        operands: a named tuple whose fields are the op's arguments, the first a tensor.
        results: number of tensors that the op returns.
        fake: makes the results without data.
    """
    kinds = (str(getattr(kind, "__forward_arg__", kind)) for kind in operands.__annotations__.values())
    types = (re.sub(r"list\[(\w+)\]", r"\1[]", kind).replace(" | None", "?") for kind in kinds)
    arguments = ", ".join(map(" ".join, zip(types, operands._fields, strict=True)))
    define(f"{name}({arguments}) -> ({', '.join(['Tensor'] * results)})")(lambda *given: fake(operands(*given)))

    def register(function: Callable[[Operands], R]) -> Callable[[Operands], R]:
        launch = on_its_device(lambda _, given: function(given))
        for device in ("CUDA", "CPU"):
            LIBRARY.impl(name, lambda *given: launch(given[0], operands(*given)), device)  # type: ignore[no-untyped-call]

        def call(given: Operands) -> R:
            if type(given[0]) is Tensor and not torch.compiler.is_compiling():
                return launch(given[0], given)
            result: R = getattr(torch.ops.fastreader, name)(*given)
            return result

        return call

    return register
