"""Cache JSON values by key in an SQLite file."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastreader.core.checks import require
from fastreader.errors import InputError


class Cache(contextlib.AbstractContextManager["Cache"]):
    """Keys and JSON values in an SQLite file, on disk when `put` returns. A cache is a context manager.

    Every method raises OSError with the file's name if the file is damaged, deleted, locked or full. It is no error of
    a single question, so that a run stops instead of recording it as one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open or create the file.

        Raises:
            InputError: if the file is not a cache.
        """
        self.path = Path(path)
        regular = self.path.is_file() or not self.path.exists()
        require(regular, f"{self.path}: not a cache (not a regular file); remove it to create a new one")
        with self._named():
            self._db = sqlite3.connect(self.path)
        try:
            self._db.execute("CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        except (sqlite3.DatabaseError, UnicodeError) as error:
            self._db.close()
            raise InputError(f"{self.path}: not a cache ({error}); remove it to create a new one") from error

    def get(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return the values of those keys that are in the file."""
        found: dict[str, Any] = {}
        for start in range(0, len(keys), 500):
            part = list(dict.fromkeys(keys[start : start + 500]))
            marks = ",".join("?" * len(part))
            with self._named():
                rows = self._db.execute(f"SELECT key, value FROM entries WHERE key IN ({marks})", part)  # nosec B608 # marks are ?
                found.update((key, json.loads(value)) for key, value in rows)
        return found

    def put(self, values: Mapping[str, Any]) -> None:
        """Write values, and replace those that the file has."""
        rows = [(key, json.dumps(value, allow_nan=False)) for key, value in values.items()]
        with self._named(), self._db:
            self._db.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?)", rows)

    def __len__(self) -> int:
        with self._named():
            return int(self._db.execute("SELECT COUNT(*) FROM entries").fetchone()[0])

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, RecursionError, TypeError, ValueError) as error:  # the last three: no value of ours
            problem = f"the cache cannot be used ({error}); remove it to start a new one"
            raise OSError(errno.EIO, problem, str(self.path)) from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __exit__(self, *_: object) -> None:
        self.close()
