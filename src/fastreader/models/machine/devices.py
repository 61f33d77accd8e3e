"""Find out on which devices a model is, and move values between devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from fastreader.core.checks import expect, rejecting
from fastreader.errors import InputError, UnsupportedModelError

AUTOMATIC = ("auto", "balanced", "balanced_low_0", "sequential")


def devices_of(module: nn.Module) -> tuple[torch.device, ...]:
    """Return the devices of a module's parameters and buffers, each once, in the order of the modules."""
    return tuple(dict.fromkeys(tensor.device for tensor in chain(module.parameters(), module.buffers())))


def main_device(model: nn.Module) -> torch.device:
    """Return the first device of a model that is not the CPU, or the CPU."""
    found = devices_of(model)
    return next((device for device in found if device.type != "cpu"), found[0])


def check_map(device_map: Any) -> None:
    """Raise InputError if a value is not a device map, or puts weights where no pass can read them."""
    if not isinstance(device_map, Mapping):
        named = isinstance(device_map, str) and device_map in AUTOMATIC
        expect(named, "device_map", f"one of {', '.join(AUTOMATIC)}, a mapping or None", device_map)
        return
    expect(len(device_map) > 0, "device_map", "a device for each part of the model", dict(device_map))
    for part, device in device_map.items():
        expect(str(device) != "disk", "device_map", "weights in memory: a packed pass keeps them there", {part: device})
        with rejecting(f"device_map: expected devices, got {part!r}: {device!r}", RuntimeError, TypeError):
            kind = torch.device(device).type
        expect(kind != "meta", "device_map", "devices that hold weights", {part: device})


@contextmanager
def naming_devices(model: nn.Module, name: str) -> Iterator[None]:
    """Within the block, name the devices of a model in an error about tensors on two of them that meet.

    Raises:
        UnsupportedModelError: if tensors on two devices meet.
    """
    try:
        yield
    except (RuntimeError, InputError) as error:
        found = devices_of(model)
        if len(found) < 2 or isinstance(error, torch.OutOfMemoryError):
            raise
        among = ", ".join(map(str, found))
        raise UnsupportedModelError(f"{name}: its parts cannot be on several devices ({among}) so: {error}") from error


def moved(value: Any, device: torch.device) -> Any:
    """Return a value with the tensors in it on a device, also those inside tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(moved(item, device) for item in value)
    if type(value) is dict:
        return {key: moved(item, device) for key, item in value.items()}
    return value
