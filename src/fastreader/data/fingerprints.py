"""Compute fingerprints, which a resumed run compares: they differ if the result would.

- `digest` covers a value, such as settings or a question.
- `file_digest` covers a file's bytes, and `model_digest` a local model's files. `kept_file_digest` reads a file once,
  and `digested_meanwhile` in a thread.
- `file_stamp` shows a change of a file within one process, without reading it.
- `reader_identity`: the parts of a reader's description that determine results; `reader_name` is its name in them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

from fastreader.data.files import cache_dir, write_text

_WEIGHTS = (".safetensors", ".bin", ".gguf")
_PART = 1 << 20  # bytes that are hashed at a time
_SETTLED = 3 * 10**9  # ns after a change of a file from which on another change has other times
_DIGEST = re.compile("[0-9a-f]{64}")
_MODEL_FILES = re.compile(r".+\.(json|jinja|txt|model|model\.v\d+\w*|tiktoken|safetensors|bin|gguf|py)")
# Files that trainers leave next to a model.
_TRAINING = re.compile(r"\..*|(training|trainer|optimizer|scheduler|rng_state|random_states)[_.].*|.+_results\.json")


def digest(value: Any, length: int = 16) -> str:
    """Return at most 64 hexadecimal digits that distinguish values.

    The order of keys does not matter. A value that is not JSON, such as a date, is represented by its text.
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def file_digest(path: str | os.PathLike[str], stopped: Event | None = None) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal digits.

    Raises:
        CancelledError: if `stopped` was set meanwhile.
    """
    found, part = hashlib.sha256(), memoryview(bytearray(_PART))
    with Path(path).open("rb", buffering=0) as file:
        while count := file.readinto(part):
            if stopped is not None and stopped.is_set():
                raise CancelledError
            found.update(part[:count])
    return found.hexdigest()


def kept_file_digest(path: str | os.PathLike[str], stopped: Event | None = None) -> str:
    """Return `file_digest` of a file, from the cache folder if it is known and the file is unchanged.

    Raises:
        CancelledError: if `stopped` was set meanwhile.
    """
    known, compute = unchanged_file(path), partial(file_digest, path, stopped)
    return compute() if known is None else kept_note("files", digest(known, 32), compute)


@contextmanager
def digested_meanwhile(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Callable[[], list[str]]]:
    """Compute `kept_file_digest` of files in a thread while the block runs, and stop when it ends.

    Yields:
        A function that waits for the digests and returns them, in the order of the paths.
    """
    stopped, pool = Event(), ThreadPoolExecutor(1, "digest")
    found = [pool.submit(kept_file_digest, path, stopped) for path in paths]
    try:
        yield lambda: [each.result() for each in found]
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)


def computed_meanwhile(compute: Callable[[], str]) -> Callable[[], str]:
    """Call a function in a thread, and return one that waits for its result, or raises its error."""
    future: Future[str] = Future()

    def run() -> None:
        try:
            future.set_result(compute())
        except BaseException as error:  # raised where the result is wanted
            future.set_exception(error)

    Thread(target=run, name="digest", daemon=True).start()  # one that nobody waits for does not delay an exit
    return future.result


def unchanged_file(path: str | os.PathLike[str]) -> list[Any] | None:
    """Return path, size, times (ns), device and inode of a file, by which it is known to be unchanged later.

    None if it changed so recently that another change might have the same times.
    """
    file = Path(path).resolve()
    stat = file.stat()
    if time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) < _SETTLED:
        return None
    return [str(file), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_dev, stat.st_ino]


def kept_note(kind: str, key: str, compute: Callable[[], str]) -> str:
    """Return a SHA-256 in hexadecimal digits from the cache folder, or compute and keep it.

    Args:
        kind: folder of such notes.
        key: name of the note, which all that determines the digest is part of.
        compute: returns the digest.
    """
    if (known := known_note(kind, key)) is not None:
        return known
    note, found = _note(kind, key), compute()
    with contextlib.suppress(OSError):  # a cache owned by others; the note only saves computing it again
        note.parent.mkdir(parents=True, exist_ok=True)
        write_text(note, found)
    return found


def known_note(kind: str, key: str) -> str | None:
    """Return what `kept_note` has kept, or None."""
    with contextlib.suppress(OSError):  # a folder in its place, or one that cannot be read
        if _DIGEST.fullmatch(known := _note(kind, key).read_text(encoding="ascii", errors="replace")):
            return known
    return None


def _note(kind: str, key: str) -> Path:
    return cache_dir() / "digests" / kind / key


def file_stamp(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return length and modification time (ns) of a file, to notice a change within a process."""
    found = Path(path).stat()
    return found.st_size, found.st_mtime_ns


NOT_READ = "not read"
"""The revision of a reader whose weights were not read, and may be any."""


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
    """Return a digest of a local model's files, without loading it.

    A file of weights is read once, see `kept_file_digest`.

    Args:
        path: a model's folder, of which only the files directly inside count, or one file.
        below: also count files in subfolders, as sentence-transformers keeps the modules of an encoder.

    Returns:
        12 hexadecimal digits.
    """
    root = Path(path).expanduser()
    found = []
    for file in model_files(root, below=below) if root.is_dir() else [root]:
        content = (kept_file_digest if file.suffix in _WEIGHTS else file_digest)(file)
        found.append((file.relative_to(root).as_posix() if root.is_dir() else "", content))
    return digest(found, 12)


def model_files(folder: Path, *, below: bool = False) -> list[Path]:
    """Return the files of a model in its folder, sorted, with `below` also those in subfolders."""
    return sorted(file for file in (folder.rglob("*") if below else folder.iterdir()) if _is_model_file(file))


def _is_model_file(file: Path) -> bool:
    """Return whether a file belongs to the model, unlike a readme, an optimizer state or a hidden file."""
    return bool(file.is_file() and _MODEL_FILES.fullmatch(file.name) and not _TRAINING.fullmatch(file.name))
