"""WeightsState: whether somebody changed the weights of a model that runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastreader.data.fingerprints import digest, file_digest
from fastreader.models.rewriting import surgery

_QUANTISED = "__tensor_flatten__"  # an attribute of parameters of quantised kinds
_KNOWN_CODE = ("torch", "transformers", "fastreader")  # whose versions or files count by themselves


class WeightsState:
    """What a change of parameters changes: their memory, their versions, and for writes past both, one value of each.

    On a device these values are gathered in one transfer for each type. Values of quantised kinds are not compared.
    """

    def __init__(self) -> None:
        self._places: list[int] = []
        self._views: list[list[Tensor]] = []

    def of(self, parameters: Iterable[nn.Parameter]) -> list[Any]:
        """Return the state of parameters, which equals an earlier one unless one was changed."""
        every = list(parameters)
        away = [p for p in every if p.device.type not in ("cpu", "meta") and not hasattr(p, _QUANTISED) and p.numel()]
        return [*map(parameter_state, every), *self.middles(away)]

    def middles(self, parameters: list[nn.Parameter]) -> list[list[float]]:
        """Return one value of each parameter, by device and type. Views of them are kept, so that it takes no time."""
        places = [parameter.data_ptr() for parameter in parameters]
        if places != self._places:
            groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
            for parameter in parameters:
                middle = parameter.detach()[tuple(size // 2 for size in parameter.shape)]
                groups.setdefault((parameter.device, parameter.dtype), []).append(middle)
            self._places, self._views = places, list(groups.values())
        return [torch.stack(views).tolist() for views in self._views]


def parameter_state(parameter: nn.Parameter) -> tuple[Any, ...]:
    """Return what a change of a parameter changes, and on the CPU also one of its values."""
    version = surgery.version_of(parameter)
    if hasattr(parameter, _QUANTISED):  # it has no memory address
        return version, id(parameter)
    middle: Any = None
    if parameter.device.type == "cpu" and parameter.numel() > 0:
        middle = parameter.detach()
        while middle.dim():  # row by row: another view of a quantised matrix would unpack all of it
            middle = middle[len(middle) // 2]
        middle = middle.item()
    return version, parameter.data_ptr(), middle


def code_of(model: nn.Module) -> str:
    """Return a digest of the files that define a model's classes, without PyTorch's and transformers' files.

    It is empty for a model of transformers' own, and covers the code that comes with a model (`trust_remote_code`).
    """
    names = {type(module).__module__ for module in model.modules()}
    own = sorted(name for name in names if name.partition(".")[0] not in _KNOWN_CODE)
    if not own:
        return ""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in own]
    # A module of an archive or of a prompt has no file, and counts by its name.
    found = [file_digest(file) if file and Path(file).is_file() else None for file in files]
    return digest(list(zip(own, found, strict=True)), 32)
