"""ResultLog: results of a run over many examples, one JSON object a line, safe to kill and to continue.

Every line is a result whole in itself: its key under ``id``, the settings it was made with under ``settings``, a
digest of what it was made from under ``example`` where the writer gives one, and the result's own keys. A line
counts as soon as its newline is in the file, so a process that is killed loses at most the line it was writing, and
continuing cuts that torn line off.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Collection, Iterator, KeysView, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from fastreader.errors import InputError

if sys.platform != "win32":
    import fcntl

_ABSENT = object()
_START = b'{"id": "'  # of every line written here
_OURS = {"id", "example", "settings"}


class ResultLog:
    """A file of results, each appended as it comes.

    Only one process at a time may hold a log open for writing (not enforced on Windows). Usable as a context
    manager; not safe to share between threads.

    Attributes:
        path: the file.
    """

    path: Path

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        settings: Mapping[str, Any] | None = None,
        resume: bool = False,
        fsync: bool = False,
        read_only: bool = False,
    ) -> None:
        """Open a log, creating it where there is none.

        Args:
            path: a regular file.
            settings: what the results depend on (model, precision, design, seed, ...), JSON values; written
                into every line.
            resume: continue a file that holds results. A torn last line is cut off, when it is the beginning of
                a result; a file that ends in anything else is left as it is.
            fsync: force every line to the disk, so that it also survives a loss of power.
            read_only: to see what is in a file that is there, which stays as it is and may be another's to write.

        Raises:
            InputError: the file holds results and `resume` is off; a line of it is no result, was made with
                other settings (they are named), or repeats a key; it ends in an incomplete line that is no result
                cut short; another process is writing it; it is no regular file; the settings are no JSON.
            OSError: the file cannot be opened or written.
        """
        self.path = Path(path)
        self._settings: dict[str, Any] = json.loads(_encode("settings", dict(settings or {})))
        self._fsync = fsync
        if self.path.exists() and not self.path.is_file():
            raise InputError(f"{self.path}: expected a regular file, got something else")
        self._file: BinaryIO = self.path.open("rb" if read_only else "ab+", buffering=0)
        try:
            if not read_only:
                self._lock()
            if not resume and self._file.seek(0, os.SEEK_END):
                raise InputError(f"{self.path}: holds results already; continue it with resume, or remove it")
            self._examples: dict[str, str | None] = {}
            self._end = self._read()
            if not read_only:
                self._file.truncate(self._end)
        except BaseException:
            self._file.close()
            raise

    @property
    def done(self) -> KeysView[str]:
        """Keys of the results in the file."""
        return self._examples.keys()

    def holds(self, key: str, example: str) -> bool:
        """Whether the file holds the result `key`.

        Args:
            key: identifies the example.
            example: the digest that `append` was given, or would be.

        Raises:
            InputError: it holds one of this key that was made from something else.
        """
        if key not in self._examples:
            return False
        if self._examples[key] != example:
            raise InputError(f"{self.path}: {key!r} has a result already, made from another question or other texts")
        return True

    def append(self, key: str, result: Mapping[str, Any], *, example: str | None = None) -> None:
        """Write one result; it is in the file when this returns.

        Args:
            key: identifies the example; written as ``id``.
            result: JSON values, without the keys ``id``, ``example`` and ``settings``.
            example: digest of what the result was made from, for `holds`.

        Raises:
            InputError: the key is no text or has a result already, or the result cannot be written as JSON.
            OSError: the line could not be written, for example on a full disk. It is taken back, all lines
                before it are intact, and it can be appended again once there is room.
        """
        if not isinstance(key, str):
            raise InputError(f"ResultLog: key: expected a text, got {key!r}")
        if key in self._examples:
            raise InputError(f"{self.path}: {key!r} has a result already")
        if taken := result.keys() & _OURS:
            raise InputError(f"{self.path}: a result may not use the key {min(taken)!r}, the log does")
        digest = {} if example is None else {"example": example}
        line = _encode(f"result {key!r}", {"id": key, **digest, **result, "settings": self._settings})
        try:
            self._write(line + b"\n")
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            raise OSError(
                error.errno,
                f"result {key!r} could not be written ({error.strerror}); the {len(self)} before it are intact",
                str(self.path),
            ) from error
        self._end += len(line) + 1
        self._examples[key] = example

    def drop(self, keys: Collection[str]) -> None:
        """Take results out, so that they can be made anew; the file is replaced by one without them, or left as it is.

        Args:
            keys: of results; those that are not in the file are passed over.

        Raises:
            InputError: another process took the file in the meantime.
            OSError: the new file could not be written.
        """
        gone = self._examples.keys() & set(keys)
        if not gone:
            return
        scratch = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        try:
            with self.path.open("rb") as lines, scratch.open("wb") as left:
                left.writelines(
                    line for line in lines if line.strip() and _decode(str(self.path), line)["id"] not in gone
                )
                left.flush()
                os.fsync(left.fileno())
                end = left.tell()
            scratch.replace(self.path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
        self._file.close()
        self._file = self.path.open("ab+", buffering=0)
        self._lock()
        self._end = end
        for key in gone:
            del self._examples[key]

    def sync(self) -> None:
        """Force what was written to the disk."""
        if self._file.writable():
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Force what was written to the disk and let go of the file; closing twice is harmless."""
        if not self._file.closed:
            try:
                self.sync()
            finally:
                self._file.close()

    def __enter__(self) -> ResultLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __contains__(self, key: object) -> bool:
        return key in self._examples

    def __len__(self) -> int:
        return len(self._examples)

    def _lock(self) -> None:
        if sys.platform != "win32":
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"{self.path}: another process is writing it") from None

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[self._file.write(rest) :]
        if self._fsync:
            self.sync()

    def _read(self) -> int:
        """Collect the keys; returns where the last complete line ends, in bytes."""
        end = 0
        self._file.seek(0)
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    self._check_torn(number, line)
                    break
                end += len(line)
                if line.strip():
                    key, example = self._parse(number, line)
                    if key in self._examples:
                        raise InputError(f"{self.path}, line {number}: {key!r} has a result on an earlier line already")
                    self._examples[key] = example
        return end

    def _check_torn(self, number: int, line: bytes) -> None:
        """Raise unless the last line, which has no newline, is the beginning of a result and may be cut off."""
        if not line.startswith(_START[: len(line)]):
            raise InputError(
                f"{self.path}, line {number}: ends without a newline in what is no result cut short, got "
                f"{line[:40].decode(errors='replace')!r}; nothing was changed"
            )
        try:
            json.loads(line)
        except ValueError:
            return
        self._parse(number, line)  # complete but for its newline: ours, or somebody's who starts with an id too

    def _parse(self, number: int, line: bytes) -> tuple[str, str | None]:
        """Key and digest of a line."""
        where = f"{self.path}, line {number}"
        row = _decode(where, line)
        if not isinstance(row.get("id"), str) or not isinstance(row.get("settings"), dict):
            raise InputError(f"{where}: expected a result with its id and settings, got the keys {', '.join(row)}")
        theirs = row["settings"]
        if theirs != self._settings:
            names = sorted(theirs.keys() | self._settings.keys())
            differing = [
                f"{name} ({_show(theirs, name)} there, {_show(self._settings, name)} now)"
                for name in names
                if theirs.get(name, _ABSENT) != self._settings.get(name, _ABSENT)
            ]
            raise InputError(f"{where}: made with other settings: {', '.join(differing)}")
        return row["id"], row.get("example")


def iter_results(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Results of a log in the order written, each with its ``id`` and ``settings``; a torn last line is left out.

    Raises:
        InputError: a complete line is no JSON object.
    """
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n") and line.strip():
                yield _decode(f"{path}, line {number}", line)


def _decode(where: str, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where}: broken JSON: {error}") from None
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected a JSON object, got {line[:40].decode(errors='replace')!r}")
    return row


def _encode(name: str, value: dict[str, Any]) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"ResultLog: {name} cannot be written as JSON: {error}") from error


def _show(settings: dict[str, Any], name: str) -> str:
    return json.dumps(settings[name], ensure_ascii=False) if name in settings else "absent"
