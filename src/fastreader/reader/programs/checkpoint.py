"""Checkpoint: replies saved as they come, with their costs, so that a program that runs again need not request them.

A cache of the reader's calls (`fastreader.study.cached_reader`) is not enough here: it would forget the cost of the
replies, and a session of `PrefixReader` would read its prefixes again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from fastreader.core.protocol import Generation, Loglikelihood
from fastreader.data.answer_cache import Cache
from fastreader.data.fingerprints import digest
from fastreader.reader.programs.requests import PrefixRead, Request, Score, StageCost

Replies = list[Any]
Answered = tuple[int, int, Request | PrefixRead, Replies, StageCost]
"""Index of the program, number of the request in it, the request, its replies and their cost."""


class Checkpoint:
    """Replies of programs in a cache, by program, number of the request and its content.

    Args:
        cache: holds the replies.
        keys: a key for each program, which covers the readers and settings too.
    """

    def __init__(self, cache: Cache, keys: Sequence[str]) -> None:
        self._cache, self._keys = cache, keys

    def recall(self, index: int, step: int, request: Request | PrefixRead) -> tuple[Replies, StageCost] | None:
        """Return the saved replies to request number `step` of program `index` and their cost, or None."""
        key = self._key(index, step, request)
        row = self._cache.get([key]).get(key)
        if row is None:
            return None
        if isinstance(request, Score):
            replies: Replies = [Loglikelihood(**values) for values in row["replies"]]
        else:
            replies = [[Generation(**values) for values in texts] for texts in row["replies"]]
        return replies, StageCost(**row["cost"])

    def record(self, answered: Iterable[Answered]) -> None:
        """Save the replies to the requests of one call together."""
        rows = {}
        for index, step, request, replies, cost in answered:
            values = [asdict(r) if isinstance(request, Score) else [asdict(g) for g in r] for r in replies]
            rows[self._key(index, step, request)] = {"replies": values, "cost": asdict(cost)}
        self._cache.put(rows)

    def _key(self, index: int, step: int, request: Request | PrefixRead) -> str:
        content = json.dumps(asdict(request), default=list)  # token ids of any sequence type, as lists
        return digest([self._keys[index], step, type(request).__name__, content], 64)
