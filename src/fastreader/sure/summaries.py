"""Stage 2: for each candidate a summary of the passages that supports it (Eq. 3), all from one shared prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastreader.core.protocol import TextOrTokens
from fastreader.data import Passage
from fastreader.reader.programs.requests import Program, write
from fastreader.sure.cuts import note_cut
from fastreader.sure.replies import DONE, without_done
from fastreader.sure.task import Task
from fastreader.sure.texts import choices, letter

STAGE = "summaries"


@dataclass(frozen=True)
class Summaries:
    """K texts, and what ended each: "eos", "stop" or "length"."""

    texts: list[str]
    finishes: list[str]


def summarise(task: Task, candidates: Sequence[str]) -> Program[Summaries]:
    """Write a summary for each candidate; one that does not end is cut at the limit and noted."""
    limit = task.settings.max_summary_tokens
    prompts = task.fitting(STAGE, lambda passages: summary_prompts(task, passages, candidates), limit)
    replies = yield from write(STAGE, prompts, max_new_tokens=limit, stop=(DONE,))
    texts, finishes = [without_done(r.text) for r, *_ in replies], [r.finish_reason for r, *_ in replies]
    for candidate, text, (reply, *_) in zip(candidates, texts, replies, strict=True):
        note_cut(task, STAGE, [reply], what=f"that of {candidate!r}")
        if not text:
            task.notes.append(f"summaries: that of {candidate!r} is empty")
    return Summaries(texts, finishes)


def summary_prompts(task: Task, passages: list[Passage], candidates: Sequence[str]) -> list[TextOrTokens]:
    """The paper's Listing 2 for each candidate; all but the last piece is the same."""
    t = task.settings.template
    shared = [*t.passages(passages), t.summary.format(question=task.question, choices=choices(candidates))]
    return [
        task.prompt(STAGE, [*shared, t.summary_prediction.format(prediction=f"{letter(i)} {candidate}")])
        for i, candidate in enumerate(candidates)
    ]
