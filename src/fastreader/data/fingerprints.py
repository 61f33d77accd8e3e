"""Compute fingerprints, which a resumed run compares: they differ if the result would.

- `digest` covers a value, such as settings or a question.
- `file_digest` covers a file's bytes, and `model_digest` a local model, without reading all its weights.
- `file_stamp` shows a change of a file within one process, without reading it.
- `reader_identity`: the parts of a reader's description that determine results; `reader_name` is its name in them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

_BLOCK = 1024  # bytes
_BLOCKS_OF_TENSOR, _BLOCKS_OF_FILE = 4, 1024
_WEIGHTS = (".safetensors", ".bin", ".gguf")
_MODEL_FILES = re.compile(r".+\.(json|jinja|txt|model|model\.v\d+\w*|tiktoken|safetensors|bin|gguf|py)")
# Files that trainers leave next to a model.
_TRAINING = re.compile(r"\..*|(training|trainer|optimizer|scheduler|rng_state|random_states)[_.].*|.+_results\.json")


def digest(value: Any, length: int = 16) -> str:
    """Return at most 64 hexadecimal digits that distinguish values.

    The order of keys does not matter. A value that is not JSON, such as a date, is represented by its text.
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_stamp(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return length and modification time (ns) of a file, to notice a change within a process."""
    found = Path(path).stat()
    return found.st_size, found.st_mtime_ns


def reader_identity(description: Mapping[str, str]) -> dict[str, str]:
    """Return the parts of `Reader.describe` that identify the model and its arithmetic.

    These are name, revision, dtype and precision. Device, products and forward path change results only by the rounding
    that the precision allows, so a run may resume on another machine; they belong in the rows.
    """
    return {name: description[name] for name in ("name", "revision", "dtype", "precision") if name in description}


def reader_name(model: str | os.PathLike[str]) -> str:
    """Return the name of a reader: a path in one spelling, however it was written, and any other name unchanged.

    "./m/" and the absolute path of that folder become "m"; a path outside the working directory becomes absolute.
    """
    path = Path(model).expanduser()
    if not path.exists():
        return os.fspath(model)
    whole = Path(os.path.normpath(Path.cwd() / path))  # does not resolve links: the name is the one the caller wrote
    return str(whole.relative_to(Path.cwd())) if whole.is_relative_to(Path.cwd()) else str(whole)


def model_digest(path: str | os.PathLike[str], *, below: bool = False) -> str:
    """Return a digest of a local model, without loading it.

    Of weights it reads the length and samples, of every tensor in safetensors and of the whole file otherwise:
    training changes nearly all values of a tensor, so samples suffice to notice it. Other files are read whole.

    Args:
        path: a model's folder, of which only the files directly inside count, or one file.
        below: also count files in subfolders, as sentence-transformers keeps the modules of an encoder.

    Returns:
        12 hexadecimal digits.
    """
    root = Path(path).expanduser()
    among = root.rglob("*") if below else root.iterdir() if root.is_dir() else []
    files = sorted(file for file in among if _is_model_file(file)) if root.is_dir() else [root]
    found = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        found.update(f"{file.relative_to(root).as_posix() if root.is_dir() else ''} {size}\n".encode())
        with file.open("rb") as content:
            for start, length in _samples(content, size) if file.suffix in _WEIGHTS else [(0, size)]:
                content.seek(start)
                found.update(content.read(length))
    return found.hexdigest()[:12]


def _samples(file: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
    """Yield start and length of the samples of a weights file, the first and the last byte included."""
    tensors = _tensors(file, size)
    if tensors is None:
        yield from _blocks(0, size, _BLOCKS_OF_FILE)
    else:
        yield 0, min((start for start, _ in tensors), default=size)
        for start, end in tensors:
            yield from _blocks(start, end, _BLOCKS_OF_TENSOR)


def _blocks(start: int, end: int, count: int) -> Iterator[tuple[int, int]]:
    if end - start <= count * _BLOCK:
        yield start, end - start
        return
    for block in range(count):
        yield start + block * (end - start - _BLOCK) // (count - 1), _BLOCK


def _tensors(file: BinaryIO, size: int) -> list[tuple[int, int]] | None:
    """Return start and end of every tensor from the header of a safetensors file, or None if it is invalid."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= size - 8:
        return None
    try:
        spans = [
            entry["data_offsets"] for name, entry in json.loads(file.read(length)).items() if name != "__metadata__"
        ]
        found = sorted((8 + length + int(start), 8 + length + int(end)) for start, end in spans)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return found if all(8 + length <= start <= end <= size for start, end in found) else None


def _is_model_file(file: Path) -> bool:
    """Return whether a file belongs to the model, unlike a readme, an optimizer state or a hidden file."""
    return bool(file.is_file() and _MODEL_FILES.fullmatch(file.name) and not _TRAINING.fullmatch(file.name))
