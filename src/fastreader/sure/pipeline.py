"""sure.answer: one question; and what it shares with many."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from fastreader.core.checks import check_text
from fastreader.core.protocol import ReaderProtocol
from fastreader.data import Example, Passage
from fastreader.data.arguments import make_passages
from fastreader.errors import InputError
from fastreader.reader.programs.journal import Journal
from fastreader.reader.programs.kept_reader import STAGE
from fastreader.reader.programs.readers import Readers
from fastreader.reader.programs.requests import Program
from fastreader.reader.programs.scheduler import Outcome, run
from fastreader.sure.keeping import keep
from fastreader.sure.settings import Settings, make_settings
from fastreader.sure.task import STAGES, Task
from fastreader.sure.types import Result, SureResult
from fastreader.sure.variants import Method, find_method


def answer(
    reader: ReaderProtocol,
    question: str,
    passages: Iterable[Passage | str],
    k: int | None = None,
    *,
    readers: Mapping[str, ReaderProtocol] | None = None,
    settings: Settings | None = None,
    **options: Any,
) -> SureResult:
    """Answer a question by SuRe: candidates, a summary of the passages for each, and a vote over the summaries.

    Kim et al. 2024, "SuRe: Summarizing Retrievals using Answer Candidates for Open-domain QA of LLMs", Algorithm 1.
    Four rounds of calls: K candidates in one text; K summaries decoded together from one reading of the passages;
    validity, 2 K labels; and ranking, 2 K (K - 1) labels. With mode="loglikelihood" each of the last two is one packed
    pass.

    Args:
        reader: writes and scores.
        question: its text.
        passages: in the retriever's order.
        k: candidates asked for; None: as `settings` say, 2 by default.
        readers: other readers for single stages, by "candidates", "summaries", "validity" or "ranking".
        settings: all settings at once; `k` and `options` replace single ones.
        **options: settings by name, see `Settings`.

    Returns:
        The answer with every stage.

    Raises:
        InputError: an empty question, a passage that is none, an unknown setting or a value that cannot be.
        ContextOverflowError: a prompt is longer than the reader's context, with on_overflow="error".
    """
    options |= {} if k is None else {"k": k}
    result = ask(reader, question, passages, method="sure", readers=readers, settings=settings, **options)
    assert isinstance(result, SureResult)
    return result


def ask(
    reader: ReaderProtocol,
    question: str,
    passages: Iterable[Passage | str],
    *,
    method: str = "sure",
    answers: Sequence[str] = (),
    readers: Mapping[str, ReaderProtocol] | None = None,
    settings: Settings | None = None,
    **options: Any,
) -> Result:
    """Answer a question by any method of `variants.METHODS`.

    Args:
        method: its name.
        answers: the right answers, for the oracle.
        reader, question, passages, readers, settings, **options: as for `answer`.

    Raises:
        InputError: as `answer`; or an unknown method, one whose needs are not met, or one text as `answers`.
        ContextOverflowError: as `answer`.
    """
    if isinstance(answers, str):
        raise InputError(f"answers: expected a list of texts, got the text {answers!r}")
    check_text("question", question)
    example = Example(question.strip(), make_passages(passages), answers=list(answers))
    chosen = make_settings(settings, options)
    outcome = run_group([Job(example, method, chosen, Readers(reader, readers, STAGES))])[0]
    if outcome.error is not None:
        raise outcome.error
    assert outcome.value is not None
    return outcome.value


@dataclass(frozen=True)
class Job:
    """One example to be answered by one method.

    Attributes:
        example: question, passages, right answers where known.
        method: its name.
        settings, readers: as for `answer`.
    """

    example: Example
    method: str
    settings: Settings
    readers: Readers


def run_group(jobs: Sequence[Job], journal: Journal | None = None) -> list[Outcome[Result]]:
    """Do jobs together; results carry their costs and ids. What one cannot do is an error of its own outcome."""
    tasks = [
        Task(job.example.question.strip(), list(job.example.passages), job.settings, job.readers, job.example.answers)
        for job in jobs
    ]
    methods = [find_method(job.method) for job in jobs]
    programs = [_checked(*each) for each in zip(jobs, methods, tasks, strict=True)]
    with ExitStack() as stack:
        kept = [stack.enter_context(reader) for reader in keep(list(zip(tasks, methods, strict=True)), journal)]
        outcomes = run([(p, task.readers) for p, task in zip(programs, tasks, strict=True)], journal)
    read = {index: cost for reader in kept for index, cost in reader.costs.items()}
    for index, (job, outcome) in enumerate(zip(jobs, outcomes, strict=True)):
        if index in read:
            outcome.costs = {STAGE: read[index], **outcome.costs}
        if outcome.value is not None:
            facts: dict[str, Any] = {
                "costs": outcome.costs,
                "id": job.example.id,
                "method": job.method,
                "readers": job.readers.describe(),
            }
            outcome.value = dataclasses.replace(outcome.value, **facts)
        elif outcome.error is None:
            raise InputError(f"method {job.method!r} ended without a result")
    return outcomes


def _checked(job: Job, method: Method, task: Task) -> Program[Result]:
    """The method's program, which raises at its first step where the example lacks what it needs."""
    method.check(job.settings, job.example)
    if method.reads and not task.passages:
        task.notes.append("there are no passages; the answer is from memory")
    result = yield from method.program(task)
    return result
