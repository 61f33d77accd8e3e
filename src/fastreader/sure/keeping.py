"""Keeping the passages' keys and values between the stages that begin with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fastreader.core.protocol import ReaderProtocol
from fastreader.errors import FastreaderError
from fastreader.reader.programs.journal import Journal
from fastreader.reader.programs.kept_reader import KeptReader, Passages
from fastreader.sure.task import Task

if TYPE_CHECKING:
    from fastreader.sure.variants.method import Method

STAGES = ("candidates", "summaries")


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
    found: dict[int, tuple[ReaderProtocol, list[Passages]]] = {}
    for index, (task, method) in enumerate(tasks):
        if method.rereads and (prefix := _prefix(task, method.first)):
            reader = task.readers.of(STAGES[0])
            found.setdefault(id(reader), (reader, []))[1].append(Passages(index, task.notes.append, prefix))
    made = {key: KeptReader(reader, passages, journal) for key, (reader, passages) in found.items()}
    for task, _ in tasks:  # others too, for equal requests to the same reader to be one
        serving = [made.get(id(task.readers.of(stage))) for stage in STAGES]
        if serving[0] is not None and serving[0] is serving[1]:
            task.readers = task.readers.with_stages(serving[0], STAGES)
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
