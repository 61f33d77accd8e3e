"""Open a GGUF file with its other parts, and record which of its keys and tensors are used."""

from __future__ import annotations

import re
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from fastreader.core.checks import shown
from fastreader.data.fingerprints import file_stamp
from fastreader.errors import ModelFileError, UnsupportedModelError
from fastreader.models.gguf.header import TensorInfo, parse

T = TypeVar("T")
_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
# Keys that describe a file and change no number.
_DESCRIPTIONS = ("general.", "quantize.", "quantise.", "mradermacher.", "split.")
_MODEL = "model"


class GgufFile:
    """The header of a GGUF file, and of the other parts if it is split.

    Attributes:
        path: the file, or the first part.
        paths: of all parts, in their order.
        metadata: its keys and values; an array is a list.
        tensors: by name.
        architecture: that the file states, such as "llama".

    Raises:
        ModelFileError: if a part is damaged or absent.
        UnsupportedModelError: if the file holds no language model.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.paths = path, [path]
        self.metadata, self.tensors = parse(path)
        if self.metadata.get("split.count", 0) not in (0, 1):  # 0 in a file that parts were merged into
            self._join()
        self._stamps = list(map(file_stamp, self.paths))
        self._used: set[str] = set()
        self.architecture = self.get("general.architecture", str)
        kind = self.get("general.type", str, _MODEL)
        if kind != _MODEL:
            raise UnsupportedModelError(f"{path}: general.type is {kind!r}, expected a model")

    def _join(self) -> None:
        """Add the tensors of the other parts, which are in the same folder."""
        count, number = self.metadata["split.count"], self.metadata.get("split.no")
        named = _PART.fullmatch(self.path.name)
        if named is None or int(named["count"]) != count or number != int(named["number"]) - 1:
            raise ModelFileError(
                f"{self.path}: part {shown(number)} (from 0) of {shown(count)}; parts are found by their names, which "
                "end with -00001-of-00002.gguf"
            )
        self.paths = [
            self.path.with_name(f"{named['stem']}-{part:05}-of-{count:05}.gguf") for part in range(1, count + 1)
        ]
        for part in self.paths:
            if not part.is_file():
                raise ModelFileError(f"{self.path}: one of {count} parts; {part.name} is missing from its folder")
        self.path = self.paths[0]
        tensors: dict[str, TensorInfo] = {}
        for index, part in enumerate(self.paths):
            metadata, added = parse(part)
            if metadata.get("split.no") != index or metadata.get("split.count") != count:
                raise ModelFileError(f"{part}: expected part {index} (from 0) of {count} by its split.no, split.count")
            if twice := tensors.keys() & added.keys():
                raise ModelFileError(f"{part}: tensor {min(twice)} is in another part, too")
            tensors |= added
            if index == 0:
                self.metadata = metadata
        total = self.metadata.get("split.tensors.count", len(tensors))
        if total != len(tensors):
            raise ModelFileError(f"{self.path}: its parts hold {len(tensors)} tensors, expected {shown(total)}")
        self.tensors = tensors

    def has(self, key: str) -> bool:
        """Return whether the file states a key of its architecture."""
        return f"{self.architecture}.{key}" in self.metadata

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return the value of a key, which counts as used from then on.

        Args:
            key: its full name.
            kind: int, float (which takes integers, too), str, bool or list.
            default: of a key that the file lacks; None requires the key.

        Raises:
            ModelFileError: if the value is of another kind, or a required key is missing.
        """
        if key not in self.metadata:
            if default is None:
                raise ModelFileError(f"{self.path}: lacks the key {key}")
            return default
        self._used.add(key)
        value = self.metadata[key]
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind or (isinstance(value, float) and not isfinite(value)):
            raise ModelFileError(f"{self.path}: {key}: expected {kind.__name__}, got {shown(value)}")
        found: T = value
        return found

    def use(self, keys: set[str]) -> None:
        """Let keys count as used."""
        self._used |= keys

    def tensor(self, name: str) -> TensorInfo | None:
        """Return a tensor, which counts as used from then on, or None if the file lacks it."""
        self._used.add(name)
        return self.tensors.get(name)

    def require_unchanged(self) -> None:
        """Raise ModelFileError if a part was changed since it was opened, as a download of the file does."""
        for path, stamp in zip(self.paths, self._stamps, strict=True):
            if not path.exists() or file_stamp(path) != stamp:
                raise ModelFileError(f"{path}: was changed or removed while it was read")

    def reject_unused_keys(self) -> None:
        """Raise UnsupportedModelError for a key that was not used and is not known to change no number."""
        self._reject(key for key in self.metadata if not key.startswith(_DESCRIPTIONS))

    def reject_unused_tensors(self) -> None:
        """Raise UnsupportedModelError for a tensor that was not used."""
        self._reject(self.tensors)

    def _reject(self, names: Any) -> None:
        unused = sorted(name for name in names if name not in self._used)
        if unused:
            others = f" and {len(unused) - 1} others" if len(unused) > 1 else ""
            raise UnsupportedModelError(
                f"{self.path}: states {unused[0]}{others}, which fastreader does not apply to the architecture "
                f"{self.architecture!r}"
            )
