"""Store the results of a run, and in a cache next to them the replies of questions that are not finished."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastreader.data import Example
from fastreader.data.answer_cache import Cache
from fastreader.data.fingerprints import digest
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.reader.programs.checkpoint import Checkpoint
from fastreader.sure.types import Result, result_from_dict


class Store(contextlib.AbstractContextManager["Store"]):
    """A log of results, and in "<path>.cache" the replies to single requests.

    A store is a context manager. After a kill, programs that run again take their replies from the cache, so that only
    the call in progress is lost. `finish` marks the run complete, and the cache is then removed.

    Raises:
        InputError, OSError: see `ResultLog` and `Cache`.
    """

    def __init__(self, path: Path, settings: dict[str, Any], resume: bool) -> None:
        self._log = ResultLog(path, settings=settings, resume=resume)
        try:
            self._rows = {row["id"]: row for row in iter_results(path)}
            self._cache = Cache(path.with_name(f"{path.name}.cache"))
        except BaseException:
            self._log.close()
            raise
        self._settings, self._complete = digest(settings, 64), False

    def result(self, key: str, example: Example) -> Result | None:
        """Return the saved result of `key`, or None without one.

        Raises:
            InputError: if it was made from another question, other passages or other right answers.
        """
        return result_from_dict(self._rows[key]) if self._log.holds(key, _digest(example)) else None

    def keep(self, key: str, example: Example, result: Result) -> None:
        """Append a result."""
        self._rows[key] = result.to_dict()
        self._log.append(key, self._rows[key], example=_digest(example))

    def checkpoint(self, keys: Sequence[str]) -> Checkpoint:
        """Return the checkpoint of programs with these keys."""
        return Checkpoint(self._cache, [f"{self._settings} {key}" for key in keys])

    def finish(self) -> None:
        """Mark the run complete: its replies are no longer needed."""
        self._complete = True

    def __exit__(self, *_: object) -> None:
        self._log.close()
        self._cache.close()
        if self._complete:
            self._cache.path.unlink()


def _digest(example: Example) -> str:
    """Return a digest of all texts that a result is made from."""
    return digest([example.question.strip(), [[p.title, p.text, p.score] for p in example.passages], example.answers])
