"""Keeping the passages' keys and values between the stages that begin with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastreader.errors import ContextOverflowError, OutOfBudgetError
from fastreader.sure.task import Readers, Task
from fastreader.sure.types import StageCost

STAGES = ("candidates", "summaries")


@contextmanager
def keeping(task: Task) -> Iterator[StageCost | None]:
    """Within the block, candidates and summaries go on from passages that were read once.

    That needs candidates_prompt="passages_first", one reader for both stages, and a reader with `session`. Where the
    keys and values do not fit in memory, nothing is kept and a note says so. `task.readers` serves the block.

    Yields:
        What reading the passages took; None where nothing is kept.
    """
    reader = task.readers.of(STAGES[0])
    make: Callable[..., Any] | None = getattr(reader, "session", None)
    shared = reader is task.readers.of(STAGES[1])
    if task.settings.candidates_prompt != "passages_first" or not (shared and make and task.passages):
        yield None
        return
    t = task.settings.template
    started = time.perf_counter()
    try:
        session = make(task.passage_pieces(), system=t.system, chat=t.chat, chat_options=t.chat_options)
    except ContextOverflowError:  # the stage itself leaves passages out or raises
        yield None
        return
    except OutOfBudgetError as error:
        task.notes.append(f"the passages were read anew for each stage: {error}")
        yield None
        return
    before = task.readers
    with session:
        task.readers = Readers(before.default, {**before.stages, **dict.fromkeys(STAGES, session)})
        try:
            yield StageCost(0, 0, session.stats.computed, 0, time.perf_counter() - started)
        finally:
            task.readers = before
