"""Where a run keeps its results, and beside them the replies of questions that are not finished."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastreader.core.protocol import Generation, Loglikelihood
from fastreader.data import Example
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.reader.programs.costs import StageCost
from fastreader.reader.programs.journal import Replies
from fastreader.reader.programs.requests import Keep, Request, Score
from fastreader.sure.types import Result, result_from_dict


class Store:
    """A log of results, and in "<path>.steps" one of the replies to single requests; a context manager.

    A program that is run again after its process was killed takes the replies it had from there, so that only the
    call that was running is lost. `finish` says that no reply is needed any more; the second file then goes.
    """

    def __init__(self, path: Path, settings: dict[str, Any], resume: bool) -> None:
        """Open both files, as `ResultLog` does, with its errors."""
        steps = path.with_name(path.name + ".steps")
        self._log = ResultLog(path, settings=settings, resume=resume)
        try:
            self._rows = {row["id"]: row for row in iter_results(path)}
            self._steps = ResultLog(steps, settings=settings, resume=resume)
        except BaseException:
            self._log.close()
            raise
        self._replies = {row["id"]: row for row in iter_results(steps)}
        self._complete = False

    def result(self, key: str, example: Example) -> Result | None:
        """The result the file holds under `key`; None where it holds none.

        Raises:
            InputError: it was made from another question, other passages or other right answers.
        """
        if not self._log.holds(key, _digest(example)):
            return None
        return result_from_dict(self._rows[key])

    def keep(self, key: str, example: Example, result: Result, **more: Any) -> None:
        """Append a result, with more keys on its line, such as measures of it."""
        self._rows[key] = {**{k: v for k, v in result.to_dict().items() if k != "id"}, **more}
        self._log.append(key, self._rows[key], example=_digest(example))

    def journal(self, keys: Sequence[str]) -> Steps:
        """Where the replies of programs with these keys are kept."""
        return Steps(self._steps, self._replies, list(keys))

    def finish(self) -> None:
        """Everything is answered: the replies are not needed any more."""
        self._complete = True

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        self._steps.close()
        if self._complete:
            self._steps.path.unlink()


class Steps:
    """A `Journal` in a log of replies."""

    def __init__(self, log: ResultLog, rows: dict[str, dict[str, Any]], keys: list[str]) -> None:
        self._log, self._rows, self._keys = log, rows, keys

    def recall(self, index: int, step: int, request: Request | Keep) -> tuple[Replies, StageCost] | None:
        """As `Journal.recall`; InputError where the request was another then."""
        key = f"{step}:{self._keys[index]}"
        if not self._log.holds(key, _request_digest(request)):
            return None
        row = self._rows[key]
        if isinstance(request, Score):
            replies: Replies = [Loglikelihood(**values) for values in row["replies"]]
        else:
            replies = [[Generation(**values) for values in texts] for texts in row["replies"]]
        return replies, StageCost(**row["cost"])

    def record(self, index: int, step: int, request: Request | Keep, replies: Replies, cost: StageCost) -> None:
        """As `Journal.record`."""
        key = f"{step}:{self._keys[index]}"
        values = [asdict(r) if isinstance(request, Score) else [asdict(g) for g in r] for r in replies]
        self._log.append(key, {"replies": values, "cost": asdict(cost)}, example=_request_digest(request))


def _digest(example: Example) -> str:
    """Of all texts a result is made from."""
    return _hash([example.question.strip(), [[p.title, p.text, p.score] for p in example.passages], example.answers])


def _request_digest(request: Request | Keep) -> str:
    return _hash([type(request).__name__, asdict(request)])


def _hash(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, default=list).encode()).hexdigest()[:16]
