"""Replies that were cut at their limit of new tokens, noted where that matters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastreader.core.protocol import Generation
from fastreader.sure.task import Task


def note_cut(
    task: Task,
    stage: str,
    replies: Sequence[Generation],
    read: Callable[[str], Any] = lambda text: text,
    *,
    what: str = "the reply",
) -> None:
    """Note on `task` how many replies were cut, at their limit or that of the context, in what is read of them.

    Args:
        task: gets the note.
        stage: the stage that asked.
        replies: what was written.
        read: what is made of a reply's text; a reply that could have gone on without changing it is not noted.
        what: the reply, where there is one.
    """
    cut = [reply for reply in replies if reply.finish_reason == "length" and read(reply.text) != read(reply.text + "x")]
    if not cut:
        return
    who = f"{what} was" if len(replies) == 1 else f"{len(cut)} of {len(replies)} replies were"
    task.notes.append(f"{stage}: {who} cut at {max(len(reply.token_ids) for reply in cut)} tokens, not ended")
