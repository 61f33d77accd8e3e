"""A dispatch mode under which CUDA operators compute: on PyTorch's CUDA path, and then on the CPU in stream order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from standin.device import alias, enqueue, flush, on_device, raw, snapshot, wait_in_capture
from standin.operators import OWN

# Operators that wait for the device, as the size or the value of their result depends on values.
WAITING = {
    *("_local_scalar_dense", "_unique2", "bincount", "equal", "histc", "is_set_to", "masked_select", "nonzero"),
    *("unique_consecutive", "unique_dim"),
}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
# Operators that neither read nor write values.
WITHOUT_VALUES = {
    *("_fused_sdp_choice", "_pin_memory", "_resize_output_", "detach", "empty", "empty_like", "empty_strided"),
    *("is_pinned", "lift_fresh", "new_empty", "new_empty_strided", "record_stream", "resize_", "set_"),
}
OUTSIDE = ("fastreader::", "prim::", "profiler::")  # namespaces whose operators call others


class Emulation(TorchDispatchMode):
    """Give CUDA tensors the values that they would have on a device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = _device_of(args, kwargs)
        if device is None:
            return func(*args, **kwargs)
        schema = func._schema
        own = schema.name.startswith("fastreader::")
        if not own and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:  # in inference mode such operators arrive whole
                return func.decompose(*args, **kwargs)
        name = schema.name.partition("::")[2]
        writes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
        views = not writes and any(r.alias_info is not None for r in schema.returns)
        if views or name in WITHOUT_VALUES or schema.name.startswith(OUTSIDE):
            return func(*args, **kwargs)
        if name == "_to_copy":
            result = func(*args, **kwargs)
            _copy(args[0], result, waits=not kwargs.get("non_blocking"))
            return result
        if name == "copy_":
            out, source, *rest = args
            func(*args, **kwargs)
            _copy(source, out, waits=not (rest[0] if rest else kwargs.get("non_blocking", False)))
            return out
        if _waits(name, args):
            return _at_once(func, args, kwargs, device, writes)
        return _in_order(func, args, kwargs, device, writes)


def _device_of(args: Any, kwargs: Any) -> torch.device | None:
    """Return the CUDA device of an operator's operands, or of what it makes, or None if all are on the CPU."""
    for operand in tree_flatten((args, kwargs))[0]:
        if isinstance(operand, Tensor) and operand.is_cuda:
            return operand.device
    if kwargs.get("device") is None:
        return None
    device = torch.device(kwargs["device"])
    if device.type != "cuda":
        return None
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def _waits(name: str, args: Any) -> bool:
    if name in INDEXING:
        return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    return name in WAITING or (name == "repeat_interleave" and isinstance(args[-1], Tensor))


_GENERATORS: dict[int, tuple[torch.Generator, torch.Generator]] = {}


def _generator_of(given: torch.Generator) -> torch.Generator:
    """Return the CPU's generator that replaces one of the device: draws follow each other from the same seed."""
    held = _GENERATORS.get(id(given))
    if held is None or held[0] is not given or held[1].initial_seed() != given.initial_seed():
        held = _GENERATORS[id(given)] = given, torch.Generator().manual_seed(given.initial_seed())
    return held[1]


def _on_cpu(operand: Any) -> Any:
    """Return an operand for the CPU's operator, which may run later."""
    if isinstance(operand, Tensor):
        return alias(operand) if operand.is_cuda else snapshot(operand)
    if isinstance(operand, torch.Generator) and operand.device.type == "cuda":
        return _generator_of(operand)
    return "cpu" if isinstance(operand, torch.device) and operand.type == "cuda" else operand


def _at_once(func: Any, args: Any, kwargs: Any, device: torch.device, writes: bool) -> Any:
    """Run an operator that waits for the device."""
    if torch.cuda.is_current_stream_capturing():
        wait_in_capture(device)
        raise RuntimeError(f"{func._schema.name} waits for the device while a stream is capturing")
    flush()
    args_there, kwargs_there = tree_map(_on_cpu, (args, kwargs))
    with _disable_current_modes():
        result = func(*args_there, **kwargs_there)
    if writes:
        return args[0]
    return tree_map(lambda x: on_device(x, device) if isinstance(x, Tensor) else x, result)


def _in_order(func: Any, args: Any, kwargs: Any, device: torch.device, writes: bool) -> Any:
    """Run an operator on PyTorch's CUDA path, and queue what its kernels would compute."""
    result = func(*args, **kwargs)  # allocates, checks, and launches kernels that do nothing
    args_there, kwargs_there = tree_map(_on_cpu, (args, kwargs))
    kwargs_there.pop("pin_memory", None)
    schema = func._schema
    full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    compute = OWN.get(full, func)
    if writes:
        enqueue(lambda: compute(*args_there, **kwargs_there), device)
        return result
    outs = [alias(x) if isinstance(x, Tensor) and x.is_cuda else None for x in tree_flatten(result)[0]]

    def work() -> None:
        made = tree_flatten(compute(*args_there, **kwargs_there))[0]
        for out, x in zip(outs, made, strict=False):  # some own operators leave out states of random numbers
            if out is not None and isinstance(x, Tensor) and out.numel():
                out.copy_(x.reshape(out.shape) if x.shape != out.shape else x)

    enqueue(work, device)
    return result


def _copy(source: Tensor, out: Tensor, waits: bool) -> None:
    """Copy values between tensors of which at least one is on the device, in stream order."""
    if out.is_cuda:
        # A copy engine reads pinned memory when its turn comes; pageable memory is read before the call returns.
        pinned = not source.is_cuda and not waits and source.is_pinned()
        values = alias(source) if source.is_cuda else raw(source) if pinned else snapshot(source)
        there = alias(out)
        enqueue(lambda: there.copy_(values), out.device)
        return
    values = alias(source)
    if waits or not out.is_pinned():
        flush()
        with _disable_current_modes(), torch.inference_mode(out.is_inference()):
            out.copy_(values)
    else:
        later = raw(out)
        enqueue(lambda: later.copy_(values), source.device)
