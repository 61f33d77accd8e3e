"""Log the results of a run over many examples, one JSON object per line, so that a killed run can resume.

Every line is self-contained: the key of the result under ``id``, the run's settings under ``settings``, optionally a
digest of the result's input under ``example``, and the result's own keys. A line counts as soon as its newline is in
the file, so a killed process loses at most the line that it was writing, and resuming cuts that torn line off.

Another program may delete, move, replace or change the file during the run. Every `append` and `close` therefore
compares the open file with the path, and raises OutputChangedError instead of writing where nobody looks.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, KeysView, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from fastreader.core.checks import check_text, expect, rejecting, require
from fastreader.data.files import check_readable, json_text, replacing
from fastreader.errors import OutputChangedError

if sys.platform != "win32":
    import fcntl

_ABSENT = object()
_START = b'{"id": "'  # of every line written here
_OURS = {"example", "settings"}


class ResultLog:
    """A file of results, each appended when it is ready.

    Only one process at a time may hold a log open for writing (not enforced on Windows). A log is a context manager; it
    is not safe to share between threads.

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
        """Open a log, or create it.

        Args:
            path: a regular file.
            settings: values that determine the results (model, precision, design, seed, ...), as JSON; written
                into every line.
            resume: continue a file that holds results. A torn last line is cut off if it is the start of a result;
                a file that ends in anything else is left unchanged.
            fsync: force every line to the disk, so that it also survives a power failure.
            read_only: only read an existing file; another process may be writing it.

        Raises:
            InputError: if the file holds results and `resume` is off; a line is not a result, has other settings (the
                message names them) or repeats a key; the last line is incomplete and not the start of a result;
                another process is writing the file; it is not a regular file; or the settings are not JSON.
            OSError: if the file cannot be opened or written.
        """
        self.path = Path(path)
        self._settings: dict[str, Any] = json.loads(_encode("settings", dict(settings or {})))
        self._fsync = fsync
        self._changed: OutputChangedError | None = None
        regular = self.path.is_file() or not self.path.exists()
        expect(regular, str(self.path), "a regular file", "something else")
        self._file: BinaryIO = self.path.open("rb" if read_only else "ab+", buffering=0)
        try:
            if not read_only:
                self._lock()
            fits = resume or not self._file.seek(0, os.SEEK_END)
            require(fits, f"{self.path}: holds results already; continue it with resume, or remove it")
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
        """Return whether the file holds the result `key`.

        Args:
            key: identifies the example.
            example: digest of the example, as passed to `append`.

        Raises:
            InputError: if the file holds a result of this key with another digest.
        """
        if key not in self._examples:
            return False
        made = f"{self.path}: {key!r} has a result already, made from another question or other texts"
        require(self._examples[key] == example, made)
        return True

    def append(self, key: str, result: Mapping[str, Any], *, example: str | None = None) -> None:
        """Write one result, which is in the file when this method returns.

        Args:
            key: identifies the example; written as ``id``.
            result: JSON values, without the keys ``example`` and ``settings``; an ``id`` in it gives way to `key`.
            example: digest of the result's input, for `holds`.

        Raises:
            InputError: if the key is not text or already has a result, or JSON cannot hold the result.
            OutputChangedError: if something else deleted, moved or changed the file; the message says where the
                results are.
            OSError: if the line cannot be written, for example on a full disk. The partial line is removed, all
                earlier lines are intact, and the result can be appended again once there is space.
        """
        check_text("ResultLog: key", key, empty=True)
        require(key not in self._examples, f"{self.path}: {key!r} has a result already")
        taken = sorted(result.keys() & _OURS)
        expect(not taken, f"{self.path}: result {key!r}", f"none of the log's own keys {sorted(_OURS)}", taken)
        digest = {} if example is None else {"example": example}
        line = _encode(f"result {key!r}", {"id": key, **digest, **result, "settings": self._settings} | {"id": key})
        self._check_unchanged(key, line + b"\n")
        try:
            self._write(line + b"\n")
            self._examples[key] = example
            self._end += len(line) + 1
        except BaseException as error:  # an interruption too: the file then ends with a whole line
            self._examples.pop(key, None)
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            if not isinstance(error, OSError):
                raise
            raise OSError(
                error.errno,
                f"result {key!r} could not be written ({error.strerror}); the {len(self)} earlier results are intact",
                str(self.path),
            ) from error

    def drop(self, keys: Collection[str]) -> None:
        """Remove results, so that they can be computed again.

        The file is replaced atomically.

        Args:
            keys: keys of results; keys that are not in the file are ignored.

        Raises:
            InputError: if another process has locked the file in the meantime.
            OutputChangedError: if `append` would raise it.
            OSError: if the new file cannot be written.
        """
        gone = self._examples.keys() & set(keys)
        if not gone:
            return
        self._check_unchanged()
        with self.path.open("rb") as lines, replacing(self.path, compress=False) as kept:
            for line in lines:
                if line.strip() and _decode(str(self.path), line)["id"] not in gone:
                    kept.write(line.decode("utf-8"))
        self._file.close()
        self._file = self.path.open("ab+", buffering=0)
        self._lock()
        self._end = self._file.seek(0, os.SEEK_END)
        for key in gone:
            del self._examples[key]

    def sync(self) -> None:
        """Force all written lines to the disk."""
        if self._file.writable():
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Force all written lines to the disk and close the file, if it is open.

        Raises:
            OutputChangedError: if `append` would raise it and has not raised it yet.
        """
        if not self._file.closed:
            try:
                if self._changed is None and self._file.writable():
                    self._check_unchanged()
                self.sync()
            finally:
                self._file.close()

    def __enter__(self) -> ResultLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt | SystemExit) and self._changed is None and self._file.writable():
            kept = f"{len(self)} results, each on a whole line" if len(self) else "no results yet"
            error.add_note(f"{self.path}: holds {kept}; resume to add the others")
        self.close()

    def __contains__(self, key: object) -> bool:
        return key in self._examples

    def __len__(self) -> int:
        return len(self._examples)

    def _lock(self) -> None:
        if sys.platform != "win32":
            with rejecting(f"{self.path}: another process is writing it", BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _check_unchanged(self, key: str = "", line: bytes = b"") -> None:
        """Raise OutputChangedError unless the path is the open file, with the lines written so far.

        The result that was to be appended, if any, is kept with the others wherever that is possible.
        """
        if self._changed is not None:
            raise self._changed
        ours = os.fstat(self._file.fileno())
        try:
            there = self.path.stat()
        except OSError:
            there = None
        if there is not None and (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
            if ours.st_size == self._end:
                return
            how = "cut" if ours.st_size < self._end else "grown"
            problem = f"was changed by something else during the run ({how} from {self._end} to {ours.st_size} bytes)"
            lost = f"; result {key!r} was not written" if key else ""
            help = f"check its lines, then resume to add the results that are missing{lost}"
        elif ours.st_nlink:  # it has another name
            self._write(line)
            problem = "was moved during the run"
            help = f"all its results are in {_name_of(self._file) or 'the moved file'}; move it back and resume"
        else:
            problem = "was deleted or replaced during the run"
            help = f"its results are saved in {self._rescue(line)}; move that file to {self.path} and resume"
        self._changed = OutputChangedError(f"{self.path}: {problem}; {help}")
        raise self._changed

    def _rescue(self, line: bytes) -> Path:
        """Copy the deleted file, which exists while it is open, and `line` to a new file, and return its path."""
        beside = self.path.parent if self.path.parent.is_dir() else Path(tempfile.gettempdir())
        handle, name = tempfile.mkstemp(prefix=f"{self.path.name}.rescued-", dir=beside)
        with os.fdopen(handle, "wb") as copy:
            self._file.seek(0)
            shutil.copyfileobj(self._file, copy)
            copy.write(line)
        return Path(name)

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[self._file.write(rest) :]
        if self._fsync:
            self.sync()

    def _read(self) -> int:
        """Collect the keys, and return the end of the last complete line in bytes."""
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
                    earlier = f"{self.path}, line {number}: {key!r} has a result on an earlier line already"
                    require(key not in self._examples, earlier)
                    self._examples[key] = example
        return end

    def _check_torn(self, number: int, line: bytes) -> None:
        """Raise unless the last line, which has no newline, is the start of a result and may be cut off."""
        got = f"got {line[:40].decode(errors='replace')!r}; the file is unchanged"
        start = line.startswith(_START[: len(line)])
        require(start, f"{self.path}, line {number}: expected a result or the start of one, {got}")
        try:
            json.loads(line)
        except (RecursionError, ValueError):
            return
        self._parse(number, line)  # complete except for its newline: a result, or another row that starts with an id

    def _parse(self, number: int, line: bytes) -> tuple[str, str | None]:
        """Return key and digest of a line."""
        where = f"{self.path}, line {number}"
        row = _decode(where, line)
        ok = isinstance(row.get("id"), str) and isinstance(row.get("settings"), dict)
        require(ok, f"{where}: expected a result with its id and settings, got the keys {', '.join(row)}")
        theirs, ours = row["settings"], self._settings
        differing = [
            f"{name} ({_show(theirs, name)} there, {_show(ours, name)} now)"
            for name in (sorted(theirs.keys() | ours.keys()) if theirs != ours else ())
            if theirs.get(name, _ABSENT) != ours.get(name, _ABSENT)
        ]
        require(not differing, f"{where}: made with other settings: {', '.join(differing)}")
        return row["id"], row.get("example")


def _name_of(file: BinaryIO) -> str | None:
    """Return the present name of an open file, where the system tells (Linux)."""
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/self/fd/{file.fileno()}").readlink())
    return None


def iter_results(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the results of a log in file order, each with ``id`` and ``settings``, without a torn last line.

    Raises:
        InputError: if a complete line is not a JSON object, or the file is a named pipe.
        OSError: if the file cannot be opened.
    """
    check_readable(path)
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n") and line.strip():
                yield _decode(f"{path}, line {number}", line)


def _decode(where: str, line: bytes) -> dict[str, Any]:
    with rejecting(f"{where}: broken JSON", RecursionError, ValueError):
        row = json.loads(line)
    expect(isinstance(row, dict), where, "a JSON object", row)
    return row  # type: ignore[no-any-return]


def _encode(name: str, value: dict[str, Any]) -> bytes:
    with rejecting(f"ResultLog: {name} cannot be written as JSON", TypeError, ValueError, RecursionError):
        return json_text(value).encode()


def _show(settings: dict[str, Any], name: str) -> str:
    return json.dumps(settings[name], ensure_ascii=False) if name in settings else "absent"
