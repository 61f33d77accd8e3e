"""The server's pool: scores of requests for a reader without a calibration, in memory or in a file."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from fastreader.integrations.serve.settings import ServerSettings
from fastreader.moi.calibration.pool import Pool
from fastreader.moi.quantities.observations import Observations, observe
from fastreader.scoring.results import PermutationScores

MOST_PASSAGES = 20  # of a pooled question: what requests can make the server keep is bounded


class ServerPool:
    """The pool of a server, shared by its requests.

    Args:
        settings: `pool` and `pool_file` of it.

    Attributes:
        pool: None if the server has none.

    Raises:
        InputError: if the file holds something else than a pool.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._file, self._lock, self._written = settings.pool_file, threading.Lock(), 0
        self.pool: Pool | None = None
        if settings.pool:
            self.pool = Pool.load(self._file) if self._file and Path(self._file).exists() else Pool()
            self._written = self._size()

    def add(self, scores: PermutationScores) -> Observations | None:
        """Add a question's scores if they can help to settle a bias: N or more orderings of 3 to 20 passages."""
        observed = observe(scores)
        whole = MOST_PASSAGES >= observed.length == observed.passages >= 3 and len(observed) >= observed.passages
        if self.pool is None or not whole:
            return None
        self.pool.add(observed)
        return observed

    def keep(self) -> None:
        """Save the pool if it has grown since it was last saved."""
        if self._file is None or self.pool is None:
            return
        with self._lock:
            if (size := self._size()) != self._written:
                self.pool.save(self._file)
                self._written = size

    def states(self) -> list[dict[str, Any]]:
        """Return `Pool.states`, an empty list without a pool."""
        return [] if self.pool is None else self.pool.states()

    def shown(self) -> str:
        """Return the states in words for the page, empty before the first question."""
        known = " ".join(f"{of['passages']} passages: {of['state']}." for of in self.states())
        return known and f"Position bias of this reader, learned from requests. {known}"

    def _size(self) -> int:
        return sum(state["questions"] for state in self.states())
