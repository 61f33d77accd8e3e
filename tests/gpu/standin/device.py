"""The pretended device's queues and memory, from Python: work in stream order, and CPU tensors on device memory."""

from __future__ import annotations

import ctypes
import itertools
import sys
import traceback
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

LIBRARY = ctypes.CDLL("libcudart.so.13", mode=ctypes.RTLD_GLOBAL)
LIBRARY.fakegpu_enqueue.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_long]
LIBRARY.fakegpu_enqueue.restype = ctypes.c_int
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_long)

Work = Callable[[], object]
errors: list[str] = []  # of work that ran in a queue, where no caller could catch them
_work: dict[int, Work] = {}
_recorded: set[int] = set()  # work of graphs, which may run again
_numbers = itertools.count(1)


@_CALLBACK
def _run(number: int) -> None:
    work = _work[number] if number in _recorded else _work.pop(number)
    try:
        with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
            work()
    except BaseException:  # nothing may pass through C
        errors.append(traceback.format_exc())
        print("FAKEGPU", errors[-1], file=sys.stderr, flush=True)


LIBRARY.fakegpu_set_callback(_run)


def enqueue(work: Work, device: torch.device) -> None:
    """Add work to the current stream of a device, or to the graph that it records."""
    number = next(_numbers)
    _work[number] = work
    index = torch.cuda.current_device() if device.index is None else device.index
    if torch.cuda.is_current_stream_capturing():
        _recorded.add(number)  # before the work could run
    if LIBRARY.fakegpu_enqueue(torch.cuda.current_stream(index).cuda_stream, index, number):
        _recorded.add(number)


def flush() -> None:
    """Run all that is queued on all streams."""
    LIBRARY.fakegpu_flush()


def wait_in_capture(device: torch.device) -> None:
    """Wait for the current stream, which is capturing: the capture becomes invalid, as on a device."""
    LIBRARY.cudaStreamSynchronize(ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream))


def alias(tensor: Tensor) -> Tensor:
    """Return a CPU tensor on the memory of a CUDA tensor, which it does not keep."""
    if not tensor.is_cuda:
        return tensor
    with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        tensor = tensor.detach()
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0 or storage.data_ptr() == 0:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        return _on_memory_of(tensor)


def raw(tensor: Tensor) -> Tensor:
    """Return a CPU tensor on the memory of a CPU tensor, which it does not keep: as a copy engine sees it."""
    with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        return tensor if tensor.untyped_storage().nbytes() == 0 else _on_memory_of(tensor)


def snapshot(tensor: Tensor) -> Tensor:
    """Return a copy of a CPU tensor as it is now."""
    with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        return tensor.detach().clone()


def _on_memory_of(tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    values = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=tensor.dtype).set_(values, tensor.storage_offset(), tensor.size(), tensor.stride())


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a new CUDA tensor with the values of a CPU tensor, at once."""
    with _disable_current_modes():
        out = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
        if tensor.numel():
            alias(out).copy_(tensor)
    return out
