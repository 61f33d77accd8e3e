"""Answering from the passages as they are, or from none: the paper's baselines (its Listings 5 and 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastreader.core.protocol import TextOrTokens
from fastreader.data import Passage
from fastreader.reader.programs.requests import Program, write
from fastreader.sure.cuts import note_cut
from fastreader.sure.replies import short_answer
from fastreader.sure.task import Task
from fastreader.sure.texts import number_word
from fastreader.sure.types import Result
from fastreader.sure.variants.method import finished

STAGE = "answers"


def base(task: Task) -> Program[Result]:
    """Passages, task, question."""
    reply = yield from answer_from(task)
    return finished(task, short_answer(reply), reply=reply)


def no_retrieval(task: Task) -> Program[Result]:
    """The base prompt without passages."""
    result = yield from base(replace(task, passages=[]))
    return result


def answer_from(task: Task, between: Sequence[str] = ()) -> Program[str]:
    """What the reader writes after the base prompt, with more pieces between passages and task."""
    limit = task.settings.max_answer_tokens
    prompts = task.fitting(STAGE, lambda passages: [base_prompt(task, passages, between)], limit)
    replies = yield from write(STAGE, prompts, max_new_tokens=limit)
    note_cut(task, STAGE, replies[0], short_answer)
    return replies[0][0].text


def base_prompt(task: Task, passages: Sequence[Passage], between: Sequence[str] = ()) -> TextOrTokens:
    """The base prompt over `passages`."""
    settings, t = task.settings, task.settings.variant_template
    return task.prompt(
        STAGE,
        [
            *settings.template.passages(passages),
            *between,
            t.task.format(words=number_word(settings.words)),
            *(settings.template.shot.format(question=q, answer=a) for q, a in settings.shots),
            t.question.format(question=task.question),
        ],
    )
