"""PrefixReader: reads the prefixes of a group of programs once, for all requests that start with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from fastreader.core.protocol import (
    GenerateArguments,
    Generation,
    Loglikelihood,
    LoglikelihoodArguments,
    ReaderProtocol,
    ReaderWrapper,
    Results,
    TextOrTokens,
)
from fastreader.core.tree import PrefixTree
from fastreader.errors import OutOfBudgetError
from fastreader.reader.programs.checkpoint import Answered, Checkpoint
from fastreader.reader.programs.requests import PrefixRead, StageCost

STAGE = "passages"
_STEP = -1  # in a checkpoint, before the program's own requests


@dataclass(frozen=True)
class Prefix:
    """The tokens that one program's prompts start with.

    Attributes:
        index: index of the program in its group.
        note: called with a message if the keys and values could not be cached.
        tokens: token ids.
    """

    index: int
    note: Callable[[str], None]
    tokens: tuple[int, ...]


class PrefixReader(ReaderWrapper):
    """A reader that reads the prefixes of a group of programs once, at its first call.

    If a checkpoint has all replies, nothing is read. If the keys and values do not fit in memory, nothing is cached
    and each program receives a note. A `ReaderProtocol`, and a context manager that frees the memory at its end.

    Attributes:
        costs: the cost of reading each program's prefix, by index; as if the program had run alone.
    """

    def __init__(self, reader: ReaderProtocol, prefixes: Sequence[Prefix], checkpoint: Checkpoint | None) -> None:
        super().__init__(reader)
        self.costs: dict[int, StageCost] = {}
        self._prefixes = {prefix.index: prefix for prefix in prefixes}
        self._checkpoint = checkpoint
        self._session: Any = None
        self._opened = False
        if checkpoint is not None:
            for one in prefixes:
                if known := checkpoint.recall(one.index, _STEP, PrefixRead(STAGE, one.tokens)):
                    self.costs[one.index] = known[1]

    def loglikelihood(
        self, requests: Iterable[tuple[TextOrTokens, TextOrTokens]], **options: Unpack[LoglikelihoodArguments]
    ) -> Results[Loglikelihood]:
        """Score as `Reader.loglikelihood` does, with cached prefixes."""
        return self._serving().loglikelihood(requests, **options)

    def generate(
        self, prompts: Iterable[TextOrTokens], **options: Unpack[GenerateArguments]
    ) -> Results[list[Generation]]:
        """Continue prompts as `Reader.generate` does, with cached prefixes."""
        return self._serving().generate(prompts, **options)

    def cached(self, index: int, prompts: Sequence[Sequence[int]]) -> int:
        """Return how many tokens of a program's packed prompts come from its own prefix."""
        if self._session is None or index not in self._prefixes:
            return 0
        prefix = self._prefixes[index].tokens
        sequences = [(prompt, ()) for prompt in prompts]
        together = PrefixTree.build([*sequences, (prefix, ())])
        return len(PrefixTree.build(sequences)) + len(prefix) - len(together)

    def __enter__(self) -> PrefixReader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None

    def _serving(self) -> ReaderProtocol:
        """Return the session over the prefixes, opened at the first call, or the reader if they do not fit."""
        if self._opened:
            return self.reader if self._session is None else self._session
        self._opened = True  # if opening raises, the scheduler retries without a session
        started = time.perf_counter()
        try:
            prefixes = [one.tokens for one in self._prefixes.values()]
            self._session = self.reader.session(*prefixes)  # type: ignore[attr-defined]
        except OutOfBudgetError as error:
            for one in self._prefixes.values():
                one.note(f"the passages were read again for each stage: {error}")
            return self.reader
        seconds = time.perf_counter() - started
        read: list[Answered] = []
        for one in self._prefixes.values():
            if one.index not in self.costs:  # else read before a resumed run was killed
                cost = self.costs[one.index] = StageCost(0, 0, len(one.tokens), 0, seconds)
                read.append((one.index, _STEP, PrefixRead(STAGE, one.tokens), [], cost))
        if self._checkpoint is not None:
            self._checkpoint.record(read)
        session: ReaderProtocol = self._session
        return session
