"""Cache the passages' keys and values between the stages whose prompts start with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastreader.core.protocol import ReaderProtocol
from fastreader.errors import FastreaderError
from fastreader.reader.programs.checkpoint import Checkpoint
from fastreader.reader.programs.prefix_reader import Prefix, PrefixReader
from fastreader.sure.task import Task

if TYPE_CHECKING:
    from fastreader.sure.variants.method import Variant

STAGES = ("candidates", "summaries")


def reuse_prefixes(tasks: Sequence[tuple[Task, Variant]], checkpoint: Checkpoint | None) -> list[PrefixReader]:
    """Read the passages once for the candidates and summaries of tasks.

    That needs candidates_prompt="passages_first", one reader for both stages, and a reader with `session` whose context
    holds the passages; if it does not, the stage itself leaves some out or raises.

    Args:
        tasks: tasks with their methods, in the order of their programs; `task.readers` is replaced.
        checkpoint: saves the cost of reading.

    Returns:
        The readers that now serve the tasks, to be entered as context managers.
    """
    found: dict[int, tuple[ReaderProtocol, list[Prefix]]] = {}
    for index, (task, method) in enumerate(tasks):
        if method.rereads and task.settings.candidates_prompt == "passages_first":
            reader = task.readers.of(STAGES[0])
            if tokens := _prefix(task, method.first):
                found.setdefault(id(reader), (reader, []))[1].append(Prefix(index, task.notes.append, tokens))
    if not found:
        return []
    made = {key: PrefixReader(reader, prefixes, checkpoint) for key, (reader, prefixes) in found.items()}
    for task, _ in tasks:  # all tasks, so that equal requests to the same reader stay one
        reader = task.readers.of(STAGES[0])
        if id(reader) in made and reader is task.readers.of(STAGES[1]):
            task.readers = task.readers.with_stages(made[id(reader)], STAGES)
    return list(made.values())


def _prefix(task: Task, first: int | None) -> tuple[int, ...]:
    """Return the tokens that both stages' prompts start with, or none if they cannot be cached."""
    t = task.settings.template
    reader: Any = task.readers.of(STAGES[0])
    pieces = t.passages(task.passages[:first])
    able = hasattr(reader, "prefix") and hasattr(reader, "session") and reader is task.readers.of(STAGES[1])
    if not able or not any(pieces):
        return ()
    try:
        prefix = tuple(reader.prefix(pieces, system=t.system, chat=t.chat, chat_options=t.chat_options))
    except FastreaderError:  # the stage's own prompts raise the same error, for this question only
        return ()
    limit = getattr(reader, "max_length", None)
    return () if limit is not None and len(prefix) > limit else prefix
