"""Parse the header of one GGUF file, with every count checked against the size of the file."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from fastreader.errors import ModelFileError, UnsupportedModelError
from fastreader.models.gguf.types import ARRAY, BOOL, NUMBERS, STRING, TENSORS

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_ALIGNMENT, _MOST_ALIGNMENT = 32, 1 << 20  # bytes
_MOST_ITEMS = 1 << 24  # of all arrays of a file; the largest vocabularies in use have a quarter of a million entries
_MOST_DIMENSIONS = 4
_LEAST_KEY, _LEAST_TENSOR = 13, 32  # bytes of the shortest entries
_MOST_HEADER = 1 << 27  # bytes that are mapped; a large vocabulary takes 20 million


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a file.

    Attributes:
        path: the file.
        name: in the file.
        type: name of its type, as in `types.TENSORS`.
        shape: as PyTorch orders it: rows first.
        offset, size: its bytes in the file.
    """

    path: Path
    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    size: int


def parse(path: Path) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    """Return the keys and the tensors of a GGUF file.

    Raises:
        ModelFileError: if the file is not GGUF, is truncated, or contradicts itself.
        UnsupportedModelError: if its version, byte order or a type of its tensors is unknown.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        magic = stream.read(len(_MAGIC))
        if magic != _MAGIC:
            raise ModelFileError(f"{path}: not a GGUF file (it starts with {magic!r}, expected {_MAGIC!r})")
        # not the whole file, for which a limit of address space may leave no room
        with mmap.mmap(stream.fileno(), min(size, _MOST_HEADER), access=mmap.ACCESS_READ) as content:
            return _Cursor(path, content, size).header()


class _Cursor:
    """Reads a header from front to back."""

    def __init__(self, path: Path, content: mmap.mmap, size: int) -> None:
        self.path, self.content, self.size = path, content, size
        self.at, self.items = len(_MAGIC), 0

    def damaged(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: truncated or damaged ({what})")

    def need(self, count: int, width: int, what: str) -> None:
        left = self.size - self.at
        if count * width > left:
            raise self.damaged(f"{what}: {count:,} items announced, {left:,} bytes left")
        if self.at + count * width > len(self.content):
            raise self.damaged(f"{what}: beyond the first {len(self.content):,} bytes, which hold every known header")

    def number(self, letter: str, what: str) -> Any:
        form = struct.Struct(f"<{letter}")
        self.need(1, form.size, what)
        (value,) = form.unpack_from(self.content, self.at)
        self.at += form.size
        return value

    def text(self, what: str) -> str:
        length = self.number("Q", what)
        self.need(length, 1, what)
        raw = self.content[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.damaged(f"{what}: not UTF-8") from error

    def value(self, kind: int, what: str) -> Any:
        if kind == STRING:
            return self.text(what)
        if kind == ARRAY:
            return self.array(what)
        if kind not in NUMBERS:
            raise self.damaged(f"{what}: a value of type {kind}")
        return self.flags(1, what)[0] if kind == BOOL else self.number(NUMBERS[kind], what)

    def flags(self, count: int, what: str) -> list[bool]:
        raw = self.content[self.at : self.at + count]
        if len(raw) < count or max(raw, default=0) > 1:
            raise self.damaged(f"{what}: expected true or false")
        self.at += count
        return [bool(value) for value in raw]

    def array(self, what: str) -> list[Any]:
        kind, count = self.number("I", what), self.number("Q", what)
        self.items += count
        if kind == STRING:
            self.need(count, 8, what)
        elif kind in NUMBERS:
            self.need(count, struct.calcsize(f"<{NUMBERS[kind]}"), what)
        else:
            raise self.damaged(f"{what}: an array of values of type {kind}")
        if self.items > _MOST_ITEMS:
            raise self.damaged(f"{what}: more than {_MOST_ITEMS:,} items in arrays")
        if kind == STRING:
            return self.texts(count, what)
        if kind == BOOL:
            return self.flags(count, what)
        form = struct.Struct(f"<{count}{NUMBERS[kind]}")
        values = list(form.unpack_from(self.content, self.at))
        self.at += form.size
        return values

    def texts(self, count: int, what: str) -> list[str]:
        """Return many strings, without a call for each."""
        content, at, size, found = self.content, self.at, len(self.content), []
        length_of = struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                (length,) = length_of(content, at)
                at += 8 + length
                if at > size:
                    break
                found.append(content[at - length : at].decode())
        except UnicodeDecodeError as error:
            raise self.damaged(f"{what}[{len(found)}]: not UTF-8") from error
        except struct.error:
            pass  # too few bytes for a length: reported below
        if len(found) < count:
            raise self.damaged(f"{what}: an array of {count:,} items ends early")
        self.at = at
        return found

    def header(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        version = self.number("I", "version")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            order = " in big-endian order" if swapped in _VERSIONS else ""
            number = swapped if order else version
            raise UnsupportedModelError(f"{self.path}: GGUF version {number}{order}, expected 2 or 3, little-endian")
        tensors, keys = self.number("Q", "number of tensors"), self.number("Q", "number of keys")
        self.need(keys, _LEAST_KEY, "keys")
        self.need(tensors, _LEAST_TENSOR, "tensors")
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            name = self.text("name of a key")
            if name in metadata:
                raise self.damaged(f"{name!r} is given twice")
            metadata[name] = self.value(self.number("I", name), name)
        return metadata, self.tensors(tensors, self.alignment(metadata))

    def alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        fits = type(alignment) is int and 1 <= alignment <= _MOST_ALIGNMENT and not alignment & (alignment - 1)
        if not fits:
            raise self.damaged(f"general.alignment: expected a power of 2, got {alignment!r:.50}")
        return int(alignment)

    def tensors(self, count: int, alignment: int) -> dict[str, TensorInfo]:
        found: dict[str, TensorInfo] = {}
        for _ in range(count):
            tensor = self.tensor(alignment)
            if tensor.name in found:
                raise self.damaged(f"tensor {tensor.name!r} is given twice")
            found[tensor.name] = tensor
        start = -(-self.at // alignment) * alignment
        placed, end, before = {}, start, ""
        for tensor in sorted(found.values(), key=lambda each: each.offset):
            offset = start + tensor.offset
            if offset < end:
                raise self.damaged(f"tensors {before} and {tensor.name} overlap")
            end, before = offset + tensor.size, tensor.name
            placed[tensor.name] = TensorInfo(self.path, tensor.name, tensor.type, tensor.shape, offset, tensor.size)
        if end > self.size and placed:
            raise ModelFileError(f"{self.path}: truncated at {self.size:,} bytes, its tensors end at {end:,}")
        return placed

    def tensor(self, alignment: int) -> TensorInfo:
        """Return the next tensor, with an offset that counts from the first tensor's bytes."""
        name = self.text("name of a tensor")
        dimensions = self.number("I", name)
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise self.damaged(f"{name}: expected 1 to {_MOST_DIMENSIONS} dimensions, got {dimensions}")
        sizes = [self.number("Q", name) for _ in range(dimensions)]
        kind, offset = self.number("I", name), self.number("Q", name)
        if kind not in TENSORS:
            raise UnsupportedModelError(f"{self.path}: {name}: a tensor of the unknown type {kind}")
        known = TENSORS[kind]
        if min(sizes) < 1 or prod(sizes) > self.size * known.values or sizes[0] % known.values:
            raise self.damaged(f"{name}: no tensor of type {known.name} in this file has the shape {sizes[::-1]}")
        if offset % alignment:
            raise self.damaged(f"{name}: its offset {offset} is no multiple of {alignment}")
        size = prod(sizes) // known.values * known.size
        return TensorInfo(self.path, name, known.name, tuple(sizes[::-1]), offset, size)
