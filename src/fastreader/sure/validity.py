"""Stage 3: does the summary support its candidate? (Eq. 4)"""

from __future__ import annotations

from collections.abc import Sequence

from fastreader.core.protocol import TextOrTokens
from fastreader.reader.programs.requests import Program
from fastreader.sure.labels import Choice, choose
from fastreader.sure.task import Task

STAGE = "validity"


def validate(task: Task, candidates: Sequence[str], summaries: Sequence[str]) -> Program[list[Choice]]:
    """For each candidate label 0 ("True") or 1 ("False"); the prompt holds question, candidate and summary alone."""
    t = task.settings.template
    chosen = yield from choose(task, STAGE, validity_prompts(task, candidates, summaries), (t.true, t.false))
    return chosen


def validity_prompts(task: Task, candidates: Sequence[str], summaries: Sequence[str]) -> list[TextOrTokens]:
    """The paper's Listing 3 for each candidate."""
    t = task.settings.template
    shared = t.validity_question.format(question=task.question)
    return [
        task.prompt(STAGE, [shared, t.validity.format(prediction=candidate, summary=summary)])
        for candidate, summary in zip(candidates, summaries, strict=True)
    ]


def validity_value(choice: Choice) -> float:
    """v of Eq. 4: 1 for "True", 0 for anything else."""
    return float(choice.label == 0)
