"""A stand-in for CUDA graphs on the CPU: it records what a function launches, and launches it again on the same memory.

Like a graph it knows operators and kernels with their arguments, and nothing of the Python code between them: a number
that the function took from the host stays what it was, and so does every shape and grid. A value that the host would
wait for raises an error.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

_KERNELS = ("tree_attention", "decode_attention", "linear_logprob", "merge_state", "pointwise")
_WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "unique", "masked_select")


def _tensors(result: Any) -> list[Tensor]:
    listed = result if isinstance(result, (list, tuple)) else [result]
    return [each for each in listed if isinstance(each, Tensor)]


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Kernel:
    """A kernel of Triton, whose launches are recorded."""

    def __init__(self, name: str, kernel: Any, recording: Recording) -> None:
        self.name, self.kernel, self.recording = name, kernel, recording

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **named: Any) -> None:
            def again() -> None:
                with _disable_current_modes():
                    self.kernel[grid](*args, **named)

            again()
            self.recording.grids.append((self.name, grid))
            self.recording.launches.append(again)

        return launch


class Recording(TorchDispatchMode):
    """What a function launched. As while a graph is captured, memory from before is then as it was.

    Attributes:
        result: what it returned; each replay writes these tensors again.
        launches: in order.
        grids: of Triton's kernels, by name.
        replays: how often it was launched again.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__()
        self.launches: list[Callable[[], None]] = []
        self.grids: list[tuple[str, tuple[int, ...]]] = []
        self.replays = 0
        self._made: set[int] = set()
        self._before: dict[int, tuple[Tensor, torch.UntypedStorage]] = {}
        patches = []
        for op in _KERNELS:
            module = importlib.import_module(f"fastreader.ops.{op}.triton")
            for name, kernel in vars(module).items():
                if name.endswith("_kernel") and hasattr(kernel, "arg_names"):
                    patches.append(patch.object(module, name, _Kernel(name, kernel, self)))
        for each in patches:
            each.start()
        try:
            with self:
                self.result = function()
        finally:
            for each in patches:
                each.stop()
        with torch.inference_mode():
            for tensor, kept in self._before.values():
                tensor.untyped_storage().copy_(kept)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func._overloadpacket.__name__, kwargs or {}
        assert name not in _WAITING, f"{name} waits for the device"
        changes = name.endswith("_") or "out" in kwargs
        for tensor in _tensors(kwargs.get("out", args[0])) if changes else []:
            if _place(tensor) not in self._made | self._before.keys():
                with _disable_current_modes():
                    self._before[_place(tensor)] = tensor, tensor.untyped_storage().clone()
        result = func(*args, **kwargs)
        inputs = {_place(t) for arg in (*args, *kwargs.values()) for t in _tensors(arg)}
        made = [t for t in _tensors(result) if _place(t) not in inputs]
        self._made.update(map(_place, made))

        def again() -> None:
            for old, new in zip(_tensors(result), _tensors(func(*args, **kwargs)), strict=True):
                if any(old is each for each in made):
                    old.copy_(new)

        if made or changes:  # no mere view
            self.launches.append(again)
        return result

    def replay(self) -> None:
        self.replays += 1
        with torch.inference_mode():
            for launch in self.launches:
                launch()


class Graphs:
    """Records as `models.graphs.recorder` does, and keeps the recordings."""

    def __init__(self) -> None:
        self.recordings: list[Recording] = []

    def __call__(self, function: Callable[[], Any]) -> Recording:
        self.recordings.append(Recording(function))
        return self.recordings[-1]
