"""PassageFolder: keys and values of passages as files, which processes of one machine share."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import SafetensorError

from fastreader.core.checks import expect, require
from fastreader.core.forks import repair_in_children
from fastreader.data.files import is_draft, read_object, write_json
from fastreader.errors import InputError
from fastreader.models.passage_cache.stored import FORMAT, DamagedError, read_stored, write_stored
from fastreader.models.passes.key_values import KeyValues

log = logging.getLogger(__name__)

PrefixKey = tuple[str, str]
"""Fingerprint of the model, and digest of all tokens of a prefix and of where its last part begins."""
HEADER = "h"  # begins the digests of headers

MARK = "passages.json"  # of a folder that is ours
_READER = "reader.json"  # of each reader's folder in it
_SUFFIX = ".safetensors"
_TOUCH_AFTER = 60.0  # seconds between two notes that a file is used
_MOST_TOUCHED = 1 << 16  # files whose last note is remembered, so that a server's memory does not grow
_LOOK_AFTER = 16  # a process looks at what others wrote each time it has added this share of the limit
_ROOM = 16  # evicting makes room for this share of the limit
_OLD_DRAFT = 3600.0  # seconds after which a file that is not whole was left behind


@dataclass(frozen=True)
class StoredReader:
    """What a folder of passages holds of one reader.

    Attributes:
        fingerprint: of its weights, precision and way of computing.
        about: how the reader describes itself.
        entries: number of passages and headers.
        nbytes: size of the files, in bytes.
        last_used: when a file was last written or read, in seconds since 1970.
    """

    fingerprint: str
    about: dict[str, Any]
    entries: int
    nbytes: int
    last_used: float

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self)


class PassageFolder:
    """Files of keys and values, one for each header and each passage, by the tokens before and under them.

    A file is written under another name and then renamed, so that a reader finds it whole or not at all, whoever is
    killed; one whose checksum differs is removed. Several processes may read and write.

    Args:
        path: of the folder, which is made. It holds what passages say, so nobody else may read a new one.
        max_bytes: the least recently used files leave when more is held. With several writers at once it may be
            exceeded by a sixteenth for each.

    Attributes:
        written, damaged: files that this object wrote, and that it found damaged and removed.
        evicted: files that it removed, since others needed their room.

    Raises:
        InputError: if there is something else at `path`.
        OSError: if it cannot be made.
    """

    def __init__(self, path: str | os.PathLike[str], max_bytes: int) -> None:
        self.path = Path(path)
        self.max_bytes = max_bytes
        self.written = self.damaged = self.evicted = 0
        self._size: int | None = None  # of all files, when last looked, with what was written since
        self._since = 0  # bytes written since
        self._touched: dict[PrefixKey, float] = {}
        self._unwritable = self._unreadable = False
        self._lock = threading.Lock()
        repair_in_children(self)
        require(not self.path.exists() or self.path.is_dir(), f"folder: expected a folder, {self.path} is a file")
        if not self.path.exists():
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)  # or by another process meanwhile
        mark = self.path / MARK
        if not mark.exists():
            # A server with API keys has a folder of ours in it for each.
            others = [file.name for file in self.path.iterdir() if not is_draft(file) and not (file / MARK).exists()]
            if others and not mark.exists():  # another process may have made it meanwhile
                expect(False, f"folder: {self.path}", f"an empty folder, or one with {MARK}", others[0])
            write_json(mark, {"format": FORMAT})
        held = read_object(mark).get("format")
        wanted = f"{self.path} with format {FORMAT}; remove it or name another folder, and passages are read again"
        expect(held == FORMAT, "folder", wanted, held)

    def after_fork(self) -> None:
        """Replace the lock in a forked child."""
        self._lock = threading.Lock()

    def __contains__(self, key: PrefixKey) -> bool:
        try:
            return self._file(key).exists()
        except OSError:  # of a folder that may not be looked into, which `get` logs
            return False

    def get(self, key: PrefixKey) -> KeyValues | None:
        """Return the keys and values of a prefix's last part, mapped from its file, or None."""
        file = self._file(key)
        try:
            found = read_stored(file, _identity(key))
        except (FileNotFoundError, MemoryError, torch.OutOfMemoryError):  # of a device, or no more can be mapped
            return None  # the pass reads the passage
        except OSError as error:  # a file that may not be read, or a disk that fails
            if not self._unreadable:
                log.warning("%s: cannot be read (%s); such passages are read again", self.path, error)
            self._unreadable = True
            return None
        except DamagedError as error:
            log.warning("%s; the file is removed", error)
            self.damaged += 1
            with suppress(OSError):  # of a folder that may only be read; it is not used in any case
                file.unlink()
            return None
        self.touch(key)
        return found

    def put(self, key: PrefixKey, key_values: KeyValues, about: Mapping[str, Any]) -> None:
        """Write a file, and remove the least recently used ones beyond the limit. One larger than it is not written.

        A folder that cannot be written any more, as on a full disk, is left as it is, and logged once.

        Args:
            key: of the prefix.
            key_values: of its last part.
            about: how the reader describes itself.
        """
        file, size = self._file(key), key_values.total_bytes
        if self._unwritable or size > self.max_bytes or key in self:
            return
        draft = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
        try:
            self._make_room(size)
            self._introduce(file.parent, about)
            write_stored(draft, key_values, _identity(key))
            draft.replace(file)
            self._introduce(file.parent, about)  # a prune between the two lines above may have removed it
        except (MemoryError, torch.OutOfMemoryError) as error:  # the numbers are there, so the call returns them
            draft.unlink(missing_ok=True)
            log.warning("%s: no memory to write a passage (%s)", self.path, error)
            return
        except (OSError, SafetensorError) as error:
            with suppress(OSError):  # of a folder that may only be read
                draft.unlink(missing_ok=True)
            if self.path.exists() and not file.parent.exists():  # a reader's folder was pruned meanwhile
                return
            self._unwritable = True
            log.warning("%s: cannot be written (%s); passages that are read from now on are not kept there",
                        self.path, error)  # fmt: skip
            return
        with self._lock:
            self.written += 1
            self._size = (self._size or 0) + size
            self._since += size

    def _introduce(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Make a reader's folder, which is only counted and pruned if it says whose it is."""
        mark = folder / _READER
        if not mark.exists():
            folder.mkdir(exist_ok=True)
            write_json(mark, dict(about))

    def touch(self, key: PrefixKey) -> None:
        """Note that an entry is used, also one that is in memory, so that its file stays."""
        now = time.monotonic()
        if now - self._touched.get(key, -_TOUCH_AFTER) >= _TOUCH_AFTER:
            if len(self._touched) >= _MOST_TOUCHED:
                self._touched.clear()
            self._touched[key] = now
            try:
                os.utime(self._file(key))
            except OSError:  # pruned, or a folder that may only be read
                self._touched.pop(key, None)

    def readers(self) -> list[StoredReader]:
        """Return what is held of each reader, the most recently used first."""
        found = []
        for folder in self._folders():
            try:
                files = list(_files(folder))
                used = max((when for when, _, _ in files), default=folder.stat().st_mtime)
            except FileNotFoundError:  # pruned meanwhile
                continue
            about = _about(folder)
            found.append(StoredReader(folder.name, about, len(files), sum(size for _, size, _ in files), used))
        return sorted(found, key=lambda each: -each.last_used)

    def prune(self, *, max_bytes: int | None = None, unused_for: float | None = None, keep: str | None = None) -> int:
        """Remove files, and return their number.

        Args:
            max_bytes: the least recently used ones leave until no more than this is held; None takes the limit.
            unused_for: those leave that were not used for this number of seconds.
            keep: all leave that belong to another reader than the one of this name.
        """
        removed = 0
        with FileLock(self.path / ".lock"):
            for folder in self._folders():
                others = keep is not None and _about(folder).get("name") != keep
                before = float("inf") if others else -1.0 if unused_for is None else time.time() - unused_for
                removed += sum(_remove(file) for when, _, file in _files(folder) if when < before)
            removed += self._shrink(self.max_bytes if max_bytes is None else max_bytes)
            for folder in self._folders():
                if not any(_files(folder)):
                    shutil.rmtree(folder, ignore_errors=True)
        return removed

    def _make_room(self, size: int) -> None:
        with self._lock:
            known = self._size is not None and self._since < self.max_bytes // _LOOK_AFTER
            if known and (self._size or 0) + size <= self.max_bytes:
                return
            with FileLock(self.path / ".lock"):
                held = sum(each for folder in self._folders() for _, each, _ in _files(folder))
                if held + size > self.max_bytes:
                    most = min(self.max_bytes - size, self.max_bytes - self.max_bytes // _ROOM)
                    self.evicted += self._shrink(max(0, most))
                    held = sum(each for folder in self._folders() for _, each, _ in _files(folder))
                self._size, self._since = held, 0

    def _shrink(self, most: int) -> int:
        """Remove the least recently used files until at most this many bytes are held, and return their number.

        A header is used with each of its passages, which are of no use without it, but that is noted once a minute.
        """
        found = (item for folder in self._folders() for item in _files(folder))
        files = sorted((when + _TOUCH_AFTER * file.name.startswith(HEADER), size, file) for when, size, file in found)
        held, removed = sum(size for _, size, _ in files), 0
        for _, size, file in files:
            if held <= most:
                break
            held -= size
            removed += _remove(file)
        return removed

    def _folders(self) -> Iterator[Path]:
        return (mark.parent for mark in sorted(self.path.glob(f"*/{_READER}")))

    def _file(self, key: PrefixKey) -> Path:
        return self.path / key[0] / f"{key[1]}{_SUFFIX}"


def _about(folder: Path) -> dict[str, Any]:
    """Return how a reader describes itself in its folder, for people to read, and nothing if that file is damaged."""
    try:
        return read_object(folder / _READER)
    except InputError:
        return {}


def _identity(key: PrefixKey) -> dict[str, str]:
    return dict(zip(("fingerprint", "prefix"), key, strict=True))


def _files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield when each file of a reader was last used, its size and its path, and remove drafts left behind."""
    with os.scandir(folder) as entries:
        for entry in entries:
            path = Path(entry.path)
            try:
                status = entry.stat()
            except FileNotFoundError:  # renamed or removed meanwhile
                continue
            if path.suffix == _SUFFIX:
                yield status.st_mtime, status.st_size, path
            elif is_draft(path) and status.st_mtime < time.time() - _OLD_DRAFT:
                path.unlink(missing_ok=True)


def _remove(file: Path) -> bool:
    try:
        file.unlink()
    except FileNotFoundError:  # by another process
        return False
    return True
