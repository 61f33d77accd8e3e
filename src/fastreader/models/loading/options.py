"""LoadOptions: the arguments of `Reader.load`, checked as far as they can be without looking at files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fastreader.core.checks import check_choice, expect
from fastreader.models.machine.devices import check_map

CHECKS = ("full", "quick", "off")


@dataclass(frozen=True)
class LoadOptions:
    """What a model is loaded from and how, as `Reader.load` explains.

    Attributes:
        keep_integers: keep the integers of a quantised GGUF file if `dtype` is "auto"; off for weights to train.
        name: the reader's name in results; an empty one follows from `model` and `adapter`.

    Raises:
        InputError: if an option is unknown, or two of them exclude each other.
    """

    model: Any
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    precision: str = "fast"
    products: str = "auto"
    check: str = "quick"
    trust_remote_code: bool = False
    deterministic: bool = False
    adapter: str | os.PathLike[str] | None = None
    device_map: str | Mapping[str, Any] | None = None
    keep_integers: bool = True
    name: str = ""

    def __post_init__(self) -> None:
        check_choice("check", self.check, CHECKS)
        of_file = self.dtype == "file"
        if not self.by_name:
            expect(
                self.device_map is None, "device_map", "None, since a given model stays where it is", self.device_map
            )
            expect(self.adapter is None, "adapter", "None, since a given model carries its own adapters", self.adapter)
            wanted = "another type than 'file', which is for GGUF files, for a given model"
            expect(not of_file, "dtype", wanted, self.dtype)
        if self.device_map is not None:
            expect(self.device == "auto", "device", "'auto' together with a device map", self.device)
            check_map(self.device_map)
            expect(not of_file, "dtype", "another type than 'file' together with a device map", self.dtype)

    @property
    def by_name(self) -> bool:
        """Whether the model is a name or a path, not an object."""
        return isinstance(self.model, (str, os.PathLike))

    def from_anywhere(self) -> LoadOptions:
        """Return options that mean the same in another working directory."""
        adapter = None if self.adapter is None else from_anywhere(self.adapter)
        return replace(self, model=from_anywhere(self.model), adapter=adapter)


def from_anywhere(model: str | os.PathLike[str]) -> str:
    """Return an absolute path for a path that exists, or the name, for use in another process."""
    path = Path(model).expanduser()
    return os.path.normpath(Path.cwd() / path) if path.exists() else os.fspath(model)
