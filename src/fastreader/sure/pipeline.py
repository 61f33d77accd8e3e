"""sure.answer and sure.ask: one question; and the part that they share with many."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from fastreader.core.checks import check_list
from fastreader.core.protocol import ReaderProtocol
from fastreader.data import Example, Passage
from fastreader.data.arguments import make_passages, make_question
from fastreader.errors import InputError
from fastreader.reader.programs.checkpoint import Checkpoint
from fastreader.reader.programs.costs import StageCost
from fastreader.reader.programs.prefix_reader import STAGE
from fastreader.reader.programs.readers import Readers
from fastreader.reader.programs.scheduler import Outcome, run
from fastreader.sure.prefix_reuse import reuse_prefixes
from fastreader.sure.settings import Settings, make_settings
from fastreader.sure.task import STAGES, Task
from fastreader.sure.types import Result, SureResult
from fastreader.sure.variants import find_method


def answer(
    reader: ReaderProtocol,
    question: str,
    passages: Iterable[Passage | str],
    k: int | None = None,
    **options: Any,
) -> SureResult:
    """Answer a question by SuRe: candidates, a summary of the passages for each, and a vote over the summaries.

    Kim et al. 2024, "SuRe: Summarizing Retrievals using Answer Candidates for Open-domain QA of LLMs", Algorithm 1.
    Four rounds of calls: K candidates in one text; K summaries decoded together from one reading of the passages;
    validity, 2 K labels; and ranking, 2 K (K - 1) labels. With mode="loglikelihood" each of the last two is one packed
    pass.

    Args:
        reader: the reader that writes and scores.
        question: the question.
        passages: passages or texts, in the retriever's order.
        k: number of candidates; None takes it from `settings`, by default 2.
        **options: `readers`, `settings` and single settings, as for `ask`.

    Returns:
        The answer with every stage.

    Raises:
        InputError: if the question is empty, a passage is invalid, or a setting is unknown or invalid.
        ContextOverflowError: if a prompt is longer than the reader's context, with on_overflow="error".
    """
    options |= {} if k is None else {"k": k}
    result = ask(reader, question, passages, method="sure", **options)
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
        reader: the reader that writes and scores.
        question: the question.
        passages: passages or texts, in the retriever's order.
        method: name of the method; "name@N" reads only the first N passages.
        answers: the right answers, for the oracle.
        readers: other readers for single stages, by "candidates", "summaries", "validity", "ranking", ...
        settings: all settings at once; None takes the defaults.
        **options: single settings by name, see `Settings`; they replace those of `settings`.

    Raises:
        InputError: as `answer`; or if the method is unknown or lacks what it needs.
        ContextOverflowError: as `answer`.
    """
    check_list("answers", answers, of="texts")
    example = Example(make_question(question), make_passages(passages), answers=list(answers))
    chosen = make_settings(settings, options)
    [outcome] = run_group([Job(example, method, chosen, Readers(reader, readers, STAGES))])
    if outcome.error is not None:
        raise outcome.error
    assert outcome.value is not None
    return outcome.value


@dataclass(frozen=True)
class Job:
    """One example to be answered by one method.

    Attributes:
        example: question, passages, and right answers if known.
        method: name of the method.
        settings, readers: as for `ask`.
    """

    example: Example
    method: str
    settings: Settings
    readers: Readers


def run_group(jobs: Sequence[Job], checkpoint: Checkpoint | None = None) -> list[Outcome[Result]]:
    """Run jobs together; results carry their costs and ids. A job that fails puts an error into its own outcome."""
    tasks = []
    for job in jobs:
        question, passages = job.example.question.strip(), list(job.example.passages)
        task = Task(question, passages, job.settings, job.readers, list(job.example.answers))
        tasks.append((task, find_method(job.method)))
    read: dict[int, StageCost] = {}
    with ExitStack() as stack:
        prefix_readers = [stack.enter_context(reader) for reader in reuse_prefixes(tasks, checkpoint)]
        outcomes = run([(method.run(task), task.readers) for task, method in tasks], checkpoint)
        for reader in prefix_readers:
            read |= reader.costs
    for index, (job, outcome) in enumerate(zip(jobs, outcomes, strict=True)):
        if index in read:
            outcome.costs = {STAGE: read[index], **outcome.costs}
        if outcome.value is not None:
            facts: dict[str, Any] = {"costs": outcome.costs, "id": job.example.id, "method": job.method}
            outcome.value = dataclasses.replace(outcome.value, **facts, readers=job.readers.describe())
        elif outcome.error is None:
            raise InputError(f"method {job.method!r} ended without a result")
    return outcomes
