"""What of a reader a run may not change when it goes on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path


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


def stamp(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Length and time of the last change: tells within a process whether a file that was read is still that one."""
    found = Path(path).stat()
    return found.st_size, found.st_mtime_ns
