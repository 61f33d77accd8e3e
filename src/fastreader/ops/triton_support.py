"""What every Triton implementation asks first: can it run on these tensors, and for which kind of device.

Triton itself is imported inside the functions, so that `import fastreader` stays free of it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from fastreader.errors import UnsupportedImplementationError
from fastreader.ops.extension import Serving

LIBRARY = torch.library.Library("fastreader", "FRAGMENT")  # type: ignore[no-untyped-call]
TARGETS = (80, 89, 90, 100, 120)  # compute capabilities with a pinned configuration of their own
_MAX_SIZE = 256
P = ParamSpec("P")
R = TypeVar("R")
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@cache
def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU (TRITON_INTERPRET=1)."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


def why_not(tensor: Tensor, size: int = 1) -> str | None:
    """Why the Triton kernels cannot run on this tensor, with heads of this size; None where they can."""
    if importlib.util.find_spec("triton") is None:
        return "the triton package is not installed"
    if tensor.dtype not in _DTYPES:
        return f"it takes float16, bfloat16 or float32, got {str(tensor.dtype).removeprefix('torch.')}"
    if size > _MAX_SIZE:
        return f"it takes head sizes up to {_MAX_SIZE}, got {size}"
    if interpreting():
        return None
    if not tensor.is_cuda:
        return f"it needs a CUDA device, got {tensor.device} (on the CPU set TRITON_INTERPRET=1 to interpret it)"
    capability = torch.cuda.get_device_capability(tensor.device)
    if capability < (8, 0):
        return f"it needs compute capability 8.0 or later, got {capability[0]}.{capability[1]}"
    return None


def cuda_serving(dtypes: str = "float32, float16, bfloat16") -> Serving:
    """Which implementation `impl="auto"` picks on a CUDA device for inputs of these types, and why."""
    if importlib.util.find_spec("triton") is None:
        return Serving("cuda", "torch", "the triton package is not installed")
    return Serving(f"cuda ({dtypes})", "triton", "Triton kernels, from compute capability 8.0; torch below it")


def require_triton(op: str, tensor: Tensor, size: int = 1) -> None:
    """Raise unless the Triton kernels can run on this tensor, with heads of this size.

    Raises:
        UnsupportedImplementationError: names the op and the reason.
    """
    reason = why_not(tensor, size)
    if reason is not None:
        raise UnsupportedImplementationError(f"{op}: impl='triton' cannot run here: {reason}")


def target_of(device: torch.device) -> int:
    """The entry of `TARGETS` whose configurations fit the device."""
    if device.type != "cuda":
        return TARGETS[0]  # the interpreter: any will do
    major, minor = torch.cuda.get_device_capability(device)
    return nearest_target(10 * major + minor)


def nearest_target(capability: int) -> int:
    """The entry of `TARGETS` for a compute capability, as major * 10 + minor.

    8.6 and 8.7 take the configurations of 8.9: they have its shared memory at least, unlike 8.0's.
    """
    if capability in (86, 87):
        return 89
    return max(target for target in TARGETS if target <= capability)


def processors(device: torch.device) -> int:
    """Streaming multiprocessors of the device; 4 in the interpreter."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def with_near_tiles(tensor: Tensor, extents: tuple[int, ...]) -> Tensor:
    """The tensor, or a contiguous copy where offsets inside a tile of these extents would not fit 32 bits.

    Kernels address a tile with 64 bits and its elements with 32 from there; only layouts such as a head size
    outermost in a very long tensor come near the limit.
    """
    span = sum((extent - 1) * stride for extent, stride in zip(extents, tensor.stride(), strict=True))
    return tensor if span < 2**31 else tensor.contiguous()


@dataclass(frozen=True)
class Registered:
    """An op registered with torch.library, waiting for its fake.

    Attributes:
        name: qualified.
    """

    name: str

    def register_fake(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register what the op's result looks like, from shapes without data."""
        torch.library.register_fake(self.name, function, lib=LIBRARY)
        return function


def on_its_device(function: Callable[Concatenate[Tensor, P], R]) -> Callable[Concatenate[Tensor, P], R]:
    """The function, run with its first tensor's device as the current one, on which Triton launches."""

    @wraps(function)
    def run(tensor: Tensor, /, *others: P.args, **named: P.kwargs) -> R:
        with torch.cuda.device_of(tensor):  # type: ignore[no-untyped-call]
            return function(tensor, *others, **named)

    return run


def triton_op(schema: str) -> Callable[[Callable[..., Any]], Registered]:
    """Register a function that launches Triton kernels as the op ``fastreader::<schema>``.

    On CUDA tensors, and for the interpreter on the CPU's.
    """

    def register(function: Callable[..., Any]) -> Registered:
        LIBRARY.define(schema)  # type: ignore[no-untyped-call]
        name = schema.partition("(")[0]
        for device in ("CUDA", "CPU"):
            LIBRARY.impl(name, on_its_device(function), device)  # type: ignore[no-untyped-call]
        return Registered(f"fastreader::{name}")

    return register
