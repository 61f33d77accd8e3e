"""Keys, values and states of one passage as a file, mapped into memory when it is read, with a checksum."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fastreader.models.passage_cache.rounded import RoundedKeyValues
from fastreader.models.passes.key_values import KeyValues
from fastreader.models.passes.recurrent_states import RecurrentStates

FORMAT = "2"
_STATE = "state"
_TYPES = {str(dtype): dtype for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)}

Name = tuple[str, int, int]
"""What a tensor is: its kind, with its layer, or with a mixer and one of its calls."""


class DamagedError(Exception):
    """A file that is not what was written."""


def write_stored(path: Path, key_values: KeyValues, about: Mapping[str, str]) -> None:
    """Write a passage's keys, values and states to a new file.

    Tensors of one shape, type and device are stored as one, since each of a file costs time to open.

    Args:
        path: of the file.
        key_values: of all tokens of the passage.
        about: kept with them, and compared by `read_stored`.

    Raises:
        OSError, SafetensorError: if it cannot be written.
    """
    groups: dict[tuple[torch.Size, torch.dtype, torch.device], list[tuple[Name, Tensor]]] = {}
    for name, tensor in _named(key_values):
        groups.setdefault((tensor.shape, tensor.dtype, tensor.device), []).append((name, tensor))
    content = {str(i): torch.stack([tensor for _, tensor in group]).cpu() for i, group in enumerate(groups.values())}
    states = key_values.states
    header = json.dumps({
        "format": FORMAT,
        "tokens": len(key_values),
        "layout": [[str(device), [name for name, _ in group]] for (_, _, device), group in groups.items()],
        "rounded": str(key_values.dtype) if isinstance(key_values, RoundedKeyValues) else None,
        "after": None if states is None else states.tokens.tolist(),
        **about,
    })  # fmt: skip
    save_file(content, path, metadata={"header": header, "sum": str(_sum_of(header, content))})


def read_stored(path: Path, about: Mapping[str, str]) -> KeyValues:
    """Return what `write_stored` wrote, mapped from the file where its layer is on the CPU.

    Args:
        path: of the file.
        about: as it was written.

    Raises:
        OSError: if the file cannot be read, or does not exist.
        DamagedError: if it is not what was written.
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            content = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        whole = metadata["sum"] == str(_sum_of(metadata["header"], content))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:  # ValueError: a name that is no number
        raise DamagedError(f"{path}: {error}") from error
    except RuntimeError as error:  # PyTorch opens the file once more, by its name, and may then find none
        if not path.exists():
            raise FileNotFoundError(f"{path}: was removed meanwhile") from error
        raise OSError(f"{path}: {error}") from error
    if not whole:
        raise DamagedError(f"{path}: its bytes have another checksum")
    header = json.loads(metadata["header"])
    wanted = {"format": FORMAT, **about}
    if {name: header.get(name) for name in wanted} != wanted:
        raise DamagedError(f"{path}: expected a file of {wanted}")
    tensors: dict[Name, Tensor] = {}
    for group, (device, names) in enumerate(header["layout"]):
        tensors |= zip(map(tuple, names), content[str(group)].to(device).unbind(), strict=True)
    rounded = header["rounded"]
    key_values = KeyValues() if rounded is None else RoundedKeyValues(dtype=_TYPES[rounded])
    key_values.tokens = header["tokens"]
    for kind, own in _lists(key_values):
        own += [tensors[kind, layer, 0] for layer in range(sum(name[0] == kind for name in tensors))]
    if header["after"] is not None:
        states = {(mixer, call): tensor for (kind, mixer, call), tensor in tensors.items() if kind == _STATE}
        key_values.states = RecurrentStates(np.array(header["after"], dtype=np.int64), states)
    return key_values


def _named(key_values: KeyValues) -> Iterator[tuple[Name, Tensor]]:
    for kind, own in _lists(key_values):
        for layer, tensor in enumerate(own):
            yield (kind, layer, 0), tensor
    if key_values.states is not None:
        for (mixer, call), tensor in key_values.states.tensors.items():
            yield (_STATE, mixer, call), tensor


def _lists(key_values: KeyValues) -> list[tuple[str, list[Tensor]]]:
    lists = [("keys", key_values.keys), ("values", key_values.values)]
    if isinstance(key_values, RoundedKeyValues):
        lists += [("key scales", key_values.key_scales), ("value scales", key_values.value_scales)]
    return lists


def _sum_of(header: str, content: Mapping[str, Tensor]) -> int:
    total = zlib.crc32(header.encode())
    for name in sorted(content, key=int):
        total = zlib.crc32(content[name].view(-1).view(torch.uint8).numpy().data, total)
    return total
