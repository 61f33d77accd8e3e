"""Keeping the passages' keys and values between the stages that begin with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastreader.core.protocol import Generation, Loglikelihood, ReaderProtocol, Results, TextOrTokens
from fastreader.core.tree import PrefixTree
from fastreader.errors import FastreaderError, OutOfBudgetError
from fastreader.reader.programs.journal import Journal
from fastreader.reader.programs.requests import Keep
from fastreader.sure.task import Readers, Task
from fastreader.sure.types import StageCost
from fastreader.wrapped import WrappedReader

if TYPE_CHECKING:
    from fastreader.sure.variants.method import Method

STAGE = "passages"
STAGES = ("candidates", "summaries")
_STEP = -1  # in a journal, before the program's own


@dataclass(frozen=True)
class Passages:
    """What one task begins its first two stages with.

    Attributes:
        index: of its program in the group.
        task: it is told where nothing could be kept.
        prefix: token ids.
    """

    index: int
    task: Task
    prefix: tuple[int, ...]


class KeptReader(WrappedReader):
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
                    one.task.notes.append(f"the passages were read anew for each stage: {error}")
            else:
                self._tell(time.perf_counter() - started)
        return self.reader if self._session is None else self._session

    def _tell(self, seconds: float) -> None:
        for one in self._passages:
            if one.index not in self.costs:  # a run that was killed has read them before
                cost = self.costs[one.index] = StageCost(0, 0, len(one.prefix), 0, seconds)
                if self._journal is not None:
                    self._journal.record(one.index, _STEP, Keep(STAGE, one.prefix), [], cost)


def keep(tasks: Sequence[tuple[Task, Method]], journal: Journal | None) -> list[KeptReader]:
    """Have the candidates and summaries of tasks go on from passages that are read once.

    That needs candidates_prompt="passages_first", one reader for both stages, and a reader with `session` whose context
    holds the passages: where it does not, the stage itself leaves some out or raises.

    Args:
        tasks: with their methods, in the order of their programs; `task.readers` is replaced.
        journal: keeps what reading took.

    Returns:
        What now serves them, one for each reader; to be entered.
    """
    found: dict[int, list[Passages]] = {}
    for index, (task, method) in enumerate(tasks):
        if method.rereads and (prefix := _prefix(task, method.first)):
            found.setdefault(id(task.readers.of(STAGES[0])), []).append(Passages(index, task, prefix))
    made = {
        key: KeptReader(passages[0].task.readers.of(STAGES[0]), passages, journal) for key, passages in found.items()
    }
    for task, _ in tasks:  # others too, for equal requests to the same reader to be one
        serving = [made.get(id(task.readers.of(stage))) for stage in STAGES]
        if serving[0] is not None and serving[0] is serving[1]:
            task.readers = Readers(task.readers.default, {**task.readers.stages, **dict.fromkeys(STAGES, serving[0])})
    return list(made.values())


def _prefix(task: Task, first: int | None) -> tuple[int, ...] | None:
    """The tokens that both stages of a task begin with; None where there are none to keep."""
    reader, t = task.readers.of(STAGES[0]), task.settings.template
    encode: Callable[..., list[int]] | None = getattr(reader, "prefix", None)
    pieces = t.passages(task.passages[:first])
    if task.settings.candidates_prompt != "passages_first" or reader is not task.readers.of(STAGES[1]):
        return None
    if encode is None or not hasattr(reader, "session") or not any(pieces):
        return None
    try:
        prefix = encode(pieces, system=t.system, chat=t.chat, chat_options=t.chat_options)
    except FastreaderError:  # the stage's prompts raise the same, where it is an error of one question alone
        return None
    limit = getattr(reader, "max_length", None)
    return None if limit is not None and len(prefix) > limit else tuple(prefix)
