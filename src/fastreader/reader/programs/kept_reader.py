"""PrefixReader: the passages of a group of questions, read once for the stages that begin with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fastreader.core.protocol import Generation, Loglikelihood, ReaderProtocol, ReaderWrapper, Results, TextOrTokens
from fastreader.core.tree import PrefixTree
from fastreader.errors import OutOfBudgetError
from fastreader.reader.programs.costs import StageCost
from fastreader.reader.programs.journal import Journal
from fastreader.reader.programs.requests import Keep

STAGE = "passages"


_STEP = -1  # in a journal, before the program's own


@dataclass(frozen=True)
class Passages:
    """What one program's prompts begin with.

    Attributes:
        index: of the program in its group.
        note: called with a message if the keys and values could not be cached.
        prefix: token ids.
    """

    index: int
    note: Callable[[str], None]
    prefix: tuple[int, ...]


class KeptReader(ReaderWrapper):
    """A reader that reads the passages of a group of tasks once, when it is first asked something.

    What it is never asked, because a journal had the replies, costs nothing. Where the keys and values do not fit in
    memory, nothing is kept and a note of each task says so. A `ReaderProtocol`, and a context manager that lets go of
    the memory at its end.

    Attributes:
        costs: what reading the passages took for each program, by its index; as if it had run alone.
    """

    def __init__(self, reader: ReaderProtocol, passages: Sequence[Passages], journal: Journal | None) -> None:
        super().__init__(reader)
        self.costs: dict[int, StageCost] = {}
        self._passages = passages
        self._prefixes = {one.index: one.prefix for one in passages}
        self._journal = journal
        self._session: Any = None
        self._opened = False
        for one in passages:
            if journal is not None and (told := journal.recall(one.index, _STEP, Keep(STAGE, one.prefix))):
                self.costs[one.index] = told[1]

    def loglikelihood(
        self, requests: Iterable[tuple[TextOrTokens, TextOrTokens]], **options: Any
    ) -> Results[Loglikelihood]:
        """As the reader's, passages read once."""
        return self._serving().loglikelihood(requests, **options)

    def generate(self, prompts: Iterable[TextOrTokens], **options: Any) -> Results[list[Generation]]:
        """As the reader's, passages read once."""
        return self._serving().generate(prompts, **options)

    def known(self, index: int, prompts: Sequence[Sequence[int]]) -> int:
        """How many tokens of a program's packed prompts were kept for it; what was kept for others does not count."""
        if self._session is None or index not in self._prefixes:
            return 0
        prefix = self._prefixes[index]
        asked = [(prompt, ()) for prompt in prompts]
        together = PrefixTree.build([*asked, (prefix, ())])
        return len(PrefixTree.build(asked)) + len(prefix) - len(together)

    def __enter__(self) -> KeptReader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None

    def _serving(self) -> ReaderProtocol:
        if not self._opened:
            self._opened = True  # should reading fail, the questions are asked again one by one without it
            started = time.perf_counter()
            try:
                self._session = self.reader.session(*(p.prefix for p in self._passages))  # type: ignore[attr-defined]
            except OutOfBudgetError as error:
                for one in self._passages:
                    one.note(f"the passages were read again for each stage: {error}")
            else:
                self._tell(time.perf_counter() - started)
        return self.reader if self._session is None else self._session

    def _tell(self, seconds: float) -> None:
        for one in self._passages:
            if one.index not in self.costs:  # a run that was killed has read them before
                cost = self.costs[one.index] = StageCost(0, 0, len(one.prefix), 0, seconds)
                if self._journal is not None:
                    self._journal.record(one.index, _STEP, Keep(STAGE, one.prefix), [], cost)
