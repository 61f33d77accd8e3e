"""Triton's interpreter on the pretended device: in stream order, with a device's bfloat16."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton.language as tl
import triton.runtime.interpreter as interpreter
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from standin.device import alias, enqueue


def patch() -> None:
    """Let the interpreter round bfloat16 to nearest and multiply it, and run kernels when their stream's turn comes."""
    _round_bfloat16()
    _multiply_bfloat16()
    _run_in_order()
    # Launchers choose the code of a device, not the types that the interpreter multiplies without this.
    from fastreader.ops import triton_support

    triton_support.interpreting = lambda: False


def _widened(bits: np.ndarray) -> np.ndarray:
    """Return the bits of float32 numbers from the bits of bfloat16 numbers."""
    return np.asarray(bits).astype(np.uint32) << np.uint32(16)


def _round_bfloat16() -> None:
    convert = interpreter._convert_float

    def rounded(values: Any, source: Any, target: Any, mode: Any) -> Any:
        if source == tl.float32 and target == tl.bfloat16:
            bits = np.asarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
            nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # ties to even
            return np.where(np.isnan(values), np.uint16(0x7FC0), nearest)
        if source == tl.bfloat16 and target == tl.float32:
            return _widened(values)
        return convert(values, source, target, mode)

    interpreter._convert_float = rounded


def _multiply_bfloat16() -> None:
    multiply = interpreter.InterpreterBuilder.create_dot

    def wide(handle: Any) -> Any:
        if handle.dtype.scalar == tl.bfloat16:
            return interpreter.TensorHandle(_widened(handle.data).view(np.float32), tl.float32)
        return handle

    interpreter.InterpreterBuilder.create_dot = lambda self, a, b, *rest: multiply(self, wide(a), wide(b), *rest)


def _run_in_order() -> None:
    launch = interpreter.GridExecutor.__call__

    def there(argument: Any) -> Any:
        if isinstance(argument, TensorDescriptor):
            return replace(argument, base=alias(argument.base))
        if isinstance(argument, tuple):
            return tuple(map(there, argument))
        return alias(argument) if isinstance(argument, Tensor) else argument

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        devices = {x.device for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_cuda}
        if not devices:
            return launch(self, *args, **kwargs)
        current = torch.device("cuda", torch.cuda.current_device())
        if devices != {current}:
            raise RuntimeError(f"Triton cannot access tensors on {devices}: the current device is {current}")
        args_there = tuple(map(there, args))
        kwargs_there = {name: there(argument) for name, argument in kwargs.items()}
        enqueue(lambda: launch(self, *args_there, **kwargs_there), current)
        return None

    interpreter.GridExecutor.__call__ = call
