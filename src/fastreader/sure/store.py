"""Store: the results of a run, and beside them the replies of questions that are not finished."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastreader.data import Example
from fastreader.data.fingerprints import digest
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.reader.programs.checkpoint import Checkpoint
from fastreader.sure.types import Result, result_from_dict


class Store:
    """A log of results, and in "<path>.checkpoint" a log of the replies to single requests; a context manager.

    After a kill, programs that run again take their recorded replies from the second log, so that only the call in
    progress is lost. `finish` marks the run complete; the second log is then removed.

    Raises:
        InputError, OSError: see `ResultLog`.
    """

    def __init__(self, path: Path, settings: dict[str, Any], resume: bool) -> None:
        checkpoint = path.with_name(path.name + ".checkpoint")
        self._log = ResultLog(path, settings=settings, resume=resume)
        try:
            self._rows = {row["id"]: row for row in iter_results(path)}
            self._steps = ResultLog(checkpoint, settings=settings, resume=resume)
        except BaseException:
            self._log.close()
            raise
        self._replies = {row["id"]: row for row in iter_results(checkpoint)}
        self._complete = False

    def result(self, key: str, example: Example) -> Result | None:
        """Return the saved result of `key`, or None without one.

        Raises:
            InputError: if it was made from another question, other passages or other right answers.
        """
        return result_from_dict(self._rows[key]) if self._log.holds(key, _digest(example)) else None

    def keep(self, key: str, example: Example, result: Result, **more: Any) -> None:
        """Append a result, with more keys on its line, such as metrics."""
        self._rows[key] = {**result.to_dict(), **more}
        self._log.append(key, self._rows[key], example=_digest(example))

    def checkpoint(self, keys: Sequence[str]) -> Checkpoint:
        """Return the checkpoint of programs with these keys."""
        return Checkpoint(self._steps, self._replies, keys)

    def finish(self) -> None:
        """Mark the run complete: its replies are no longer needed."""
        self._complete = True

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        self._steps.close()
        if self._complete:
            self._steps.path.unlink()


def _digest(example: Example) -> str:
    """Return a digest of all texts that a result is made from."""
    return digest([example.question.strip(), [[p.title, p.text, p.score] for p in example.passages], example.answers])
