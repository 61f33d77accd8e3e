"""What of a reader a run may not change when it goes on."""

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
_OF_MODELS = re.compile(r".+\.(json|jinja|txt|model|model\.v\d+\w*|tiktoken|safetensors|bin|gguf|py)")
# What trainers leave beside a model.
_OF_TRAINING = re.compile(r"\..*|(training|trainer|optimizer|scheduler|rng_state|random_states)[_.].*|.+_results\.json")


def guarding(reader: Mapping[str, str]) -> dict[str, str]:
    """Of `Reader.describe` what names the model and its arithmetic: name, revision, dtype and precision.

    Device and path of the forward change results by rounding alone: a run may go on on another machine. They belong
    into the rows.
    """
    return {name: reader[name] for name in ("name", "revision", "dtype", "precision") if name in reader}


def content(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's bytes, in hexadecimal digits: what a run may not change in a file that it reads.

    A path says nothing of what is in the file when the run goes on.
    """
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def reader_name(model: str | os.PathLike[str]) -> str:
    """What a reader is called: a path in one way, however it was written, any other name as it is.

    That way is "m" for "./m/", and for the whole path of that folder; a path outside the working directory is absolute.
    """
    path = Path(model).expanduser()
    if not path.exists():
        return os.fspath(model)
    whole = Path(os.path.normpath(Path.cwd() / path))  # links are left: a name is what was written
    return str(whole.relative_to(Path.cwd())) if whole.is_relative_to(Path.cwd()) else str(whole)


def model_digest(path: str | os.PathLike[str], *, below: bool = False) -> str:
    """A digest of a local model, before it is loaded: what a run may not change in one that it names by its path.

    Of weights the length and samples count, of every tensor in safetensors and of the whole file otherwise: training
    moves nearly all values of what it moves, which need not be read twice to notice. All other files count whole.

    Args:
        path: a model's folder, of which the files directly in it count, or one file.
        below: files in folders below it count too, as sentence-transformers keeps the modules of an encoder.

    Returns:
        12 hexadecimal digits.
    """
    found = Path(path).expanduser()
    among = found.rglob("*") if below else found.iterdir() if found.is_dir() else []
    files = sorted(file for file in among if _counts(file)) if found.is_dir() else [found]
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.relative_to(found).as_posix() if found.is_dir() else ''} {size}\n".encode())
        with file.open("rb") as bytes_of:
            for start, length in _samples(bytes_of, size) if file.suffix in _WEIGHTS else [(0, size)]:
                bytes_of.seek(start)
                digest.update(bytes_of.read(length))
    return digest.hexdigest()[:12]


def _samples(file: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
    """Where a file of weights is read, and how many bytes: its first and its last among them."""
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
    """Start and end of every tensor, as the head of a safetensors file says; None where it has no such head."""
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


def _counts(file: Path) -> bool:
    """Whether a file of a model's folder is the model's: no read-me, no optimizer's state, nothing hidden."""
    return bool(file.is_file() and _OF_MODELS.fullmatch(file.name) and not _OF_TRAINING.fullmatch(file.name))


def stamp(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Length and time of the last change: tells within a process whether a file that was read is still that one."""
    found = Path(path).stat()
    return found.st_size, found.st_mtime_ns


def digest(value: Any, length: int = 16) -> str:
    """Hexadecimal digits, 64 at most, that tell values apart; the order of keys does not matter.

    What is no JSON value, such as a date, goes by its text.
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
