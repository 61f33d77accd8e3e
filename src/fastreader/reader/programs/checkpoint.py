"""Checkpoint: replies saved as they come, so that a program that runs again need not request them again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fastreader.core.protocol import Generation, Loglikelihood
from fastreader.data.fingerprints import digest
from fastreader.data.result_log import ResultLog
from fastreader.reader.programs.costs import StageCost
from fastreader.reader.programs.requests import PrefixRead, Request, Score

Replies = list[Any]


class Checkpoint:
    """Replies of programs in a log, by the index of a program and the number of its request.

    Args:
        log: the log to append to.
        rows: the rows it held when it was opened, by id.
        keys: a key for each program.
    """

    def __init__(self, log: ResultLog, rows: Mapping[str, Mapping[str, Any]], keys: Sequence[str]) -> None:
        self._log, self._rows, self._keys = log, rows, keys

    def recall(self, index: int, step: int, request: Request | PrefixRead) -> tuple[Replies, StageCost] | None:
        """Return the replies to request number `step` of program `index`, and their cost; None if it has none.

        Raises:
            InputError: if the recorded request was another.
        """
        key = f"{step}:{self._keys[index]}"
        if not self._log.holds(key, _request_digest(request)):
            return None
        row = self._rows[key]
        if isinstance(request, Score):
            replies: Replies = [Loglikelihood(**values) for values in row["replies"]]
        else:
            replies = [[Generation(**values) for values in texts] for texts in row["replies"]]
        return replies, StageCost(**row["cost"])

    def record(self, index: int, step: int, request: Request | PrefixRead, replies: Replies, cost: StageCost) -> None:
        """Save the replies to a request."""
        values = [asdict(r) if isinstance(request, Score) else [asdict(g) for g in r] for r in replies]
        row = {"replies": values, "cost": asdict(cost)}
        self._log.append(f"{step}:{self._keys[index]}", row, example=_request_digest(request))


def _request_digest(request: Request | PrefixRead) -> str:
    values = json.dumps(asdict(request), default=list)  # token ids of any sequence type, as lists
    return digest([type(request).__name__, values])
