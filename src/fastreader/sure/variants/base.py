"""Answers from the passages as they are, or from none: the paper's baselines (its Listings 5 and 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastreader.core.protocol import TextOrTokens
from fastreader.data import Passage
from fastreader.reader.programs.requests import Program, write
from fastreader.sure.replies import short_answer
from fastreader.sure.task import Task
from fastreader.sure.templates import number_word
from fastreader.sure.types import Result
from fastreader.sure.variants.method import finished

STAGE = "answers"


def base(task: Task) -> Program[Result]:
    """Answer from passages, instruction and question."""
    reply = yield from answer_from(task)
    return finished(task, short_answer(reply), reply=reply)


def no_retrieval(task: Task) -> Program[Result]:
    """Answer by the base prompt without passages."""
    return base(replace(task, passages=[]))


def answer_from(task: Task, between: Sequence[str] = ()) -> Program[str]:
    """Return the reply to the base prompt, with more pieces between passages and instruction."""
    limit = task.settings.max_answer_tokens
    prompts = task.fitting(STAGE, lambda passages: [base_prompt(task, passages, between)], limit)
    replies = yield from write(STAGE, prompts, max_new_tokens=limit)
    task.note_cut(STAGE, replies[0], short_answer)
    return replies[0][0].text


def base_prompt(task: Task, passages: Sequence[Passage], between: Sequence[str] = ()) -> TextOrTokens:
    """Return the base prompt over `passages`."""
    settings, t = task.settings, task.settings.variant_template
    pieces = [
        *settings.template.passages(passages),
        *between,
        t.task.format(words=number_word(settings.words)),
        *(settings.template.shot.format(question=q, answer=a) for q, a in settings.shots),
        t.question.format(question=task.question),
    ]
    return task.prompt(STAGE, pieces)
