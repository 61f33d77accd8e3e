"""A pretended CUDA device, to follow a pass without a real one.

With tensors on PyTorch's meta device every operator runs up to its launch and computes nothing. A copy to the device,
a value that the host waits for and each launch can then be seen, and what remains is the time of the host.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fastreader.models.passes.cuda_graphs import VARIABLE
from fastreader.ops import extension, triton_support
from fastreader.ops.dispatch import SERVED
from fastreader.ops.linear import torch_impl

META = torch.device("meta")
_KERNELS = (
    "tree_attention.triton",
    "decode_attention.triton",
    "linear_logprob.triton",
    "merge_state.triton",
    "pointwise.triton",
    "causal_conv.triton",
    "recurrent.triton",
    "recurrent.triton_pairs",
    "recurrent.triton_chunks",
)


@contextmanager
def pretended(kernels: str | None = "a pretended device", capability: int = 90) -> Iterator[None]:
    """Take every device for CUDA with this compute capability and the processors of an H100.

    Args:
        kernels: why Triton's kernels cannot run; None if they can, in the interpreter.
        capability: as major * 10 + minor.
    """
    with (
        patch.object(triton_support, "on_gpu", lambda device: True),
        patch.object(triton_support, "capability", lambda device: capability),
        patch.object(triton_support, "_index", lambda device: 0),
        patch.object(triton_support, "_processors", lambda index: 132),
        patch.object(triton_support, "why_not", lambda *_: kernels),
        patch.object(extension, "why_not", lambda *_: "a pretended device"),
        patch.object(torch_impl, "product", _product),
        patch.dict(SERVED, clear=True),
        patch.dict(os.environ, {VARIABLE: os.environ.get(VARIABLE, "0")}),  # it records no CUDA graphs
    ):
        yield


@contextmanager
def launching(launches: Launches | None = None) -> Iterator[None]:
    """Within `pretended`, let Triton's launchers run with kernels that do nothing but enter `launches`."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(triton_support, "why_not", lambda *_: None))
        stack.enter_context(patch.dict(SERVED, clear=True))
        stack.enter_context(patch.object(torch_impl, "product", _Kernel("product", launches).multiply))
        for module in (importlib.import_module(f"fastreader.ops.{name}") for name in _KERNELS):
            for name, kernel in vars(module).items():
                if name.endswith("_kernel") and hasattr(kernel, "arg_names"):
                    stack.enter_context(patch.object(module, name, _Kernel(name, launches)))
        if launches is not None:
            stack.enter_context(launches)
        yield


def _product(left: Tensor, right: Tensor, sum: Tensor | None = None) -> Tensor:
    """Multiply on the CPU, whose products of half types have no float32 result."""
    out = left.float() @ right.float()
    return out if sum is None else sum.add_(out)


class _Kernel:
    def __init__(self, name: str, launches: Launches | None) -> None:
        self.name, self.launches = name, launches

    def __getitem__(self, grid: Any) -> Any:
        return self._launch

    def _launch(self, *given: Any, **named: Any) -> None:
        if self.launches is not None:
            first = next(iter((*given, *named.values())))
            self.launches.calls.append((self.name, tuple(first.shape)))

    def multiply(self, left: Tensor, right: Tensor, sum: Tensor | None = None) -> Tensor:
        self._launch(left)
        if sum is not None:
            return sum
        return torch.empty((left.shape[0], right.shape[1]), dtype=torch.float32, device=left.device)


def to_meta(model: nn.Module) -> None:
    """Move a model to the meta device, with the weights that its modules hold outside their parameters."""
    model.to(META)
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                setattr(module, name, value.to(META))
            elif isinstance(value, list) and any(isinstance(each, Tensor) for each in value):
                setattr(module, name, [each.to(META) if isinstance(each, Tensor) else each for each in value])


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Launches(TorchDispatchMode):
    """Record what would be launched or copied, as (name of the operator, shape of its first tensor)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self.uploads: list[int] = []  # places in `calls`

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._overloadpacket.__name__
        tensors = [a for a in args if isinstance(a, Tensor)]
        result = func(*args, **(kwargs or {}))
        made = result[0] if isinstance(result, (list, tuple)) and result else result
        made = made if isinstance(made, Tensor) else None
        on_host = [t for t in tensors if t.device.type == "cpu"]
        if made is not None and made.device == META and on_host:
            self.uploads.append(len(self.calls))
        elif all(t.device.type == "cpu" for t in tensors) and not (made is not None and made.device == META):
            return result  # work of the host
        shares = made is not None and any(_storage(made) == _storage(t) for t in tensors)
        in_place = name.endswith("_") or "out" in (kwargs or {})
        if (not shares or in_place) and not name.startswith(("empty", "new_empty")):  # no view, and no mere memory
            self.calls.append((name, tuple(tensors[0].shape) if tensors else ()))
        return result
