"""What of a reader a run may not change when it goes on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

_WHOLE = 1 << 20  # bytes
_BLOCK, _BLOCKS = 4096, 256
_OF_MODELS = {".json", ".jinja", ".txt", ".model", ".tiktoken", ".safetensors", ".bin", ".gguf", ".py"}


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
    """What a reader is called: a path in one way, however it was written ("m" for "./m/"), any other name as it is."""
    return os.path.normpath(model) if Path(model).expanduser().exists() else os.fspath(model)


def model_digest(path: str | os.PathLike[str]) -> str:
    """A digest of a local model, before it is loaded: what a run may not change in one that it names by its path.

    Small files count whole. Of weights the length and blocks at even distances count, the first and the last among
    them: training moves nearly all values of a checkpoint, which need not be read twice to notice.

    Args:
        path: a model's folder, of which the files directly in it count, or one file.

    Returns:
        12 hexadecimal digits.
    """
    found = Path(path).expanduser()
    files = sorted(file for file in found.iterdir() if _counts(file)) if found.is_dir() else [found]
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name if found.is_dir() else ''} {size}\n".encode())
        with file.open("rb") as bytes_of:
            if size <= _WHOLE:
                digest.update(bytes_of.read())
                continue
            for block in range(_BLOCKS):
                bytes_of.seek(block * (size - _BLOCK) // (_BLOCKS - 1))
                digest.update(bytes_of.read(_BLOCK))
    return digest.hexdigest()[:12]


def _counts(file: Path) -> bool:
    """Whether a file of a model's folder is the model's: no read-me, no optimizer's state, nothing hidden."""
    return file.is_file() and file.suffix in _OF_MODELS and not file.name.startswith((".", "training_", "trainer_"))


def stamp(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Length and time of the last change: tells within a process whether a file that was read is still that one."""
    found = Path(path).stat()
    return found.st_size, found.st_mtime_ns
