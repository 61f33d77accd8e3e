"""sure.answer: one question; and what it shares with many."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from fastreader.data import Example, Passage
from fastreader.errors import InputError
from fastreader.protocol import ReaderProtocol
from fastreader.sure.keeping import keeping
from fastreader.sure.lockstep import Journal, Outcome, run
from fastreader.sure.settings import Settings, make_settings
from fastreader.sure.task import Readers, Task, make_passages, make_question
from fastreader.sure.types import Result, SureResult


def answer(
    reader: ReaderProtocol,
    question: str,
    passages: Iterable[Passage | str],
    k: int = 2,
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
        k: candidates asked for.
        readers: other readers for single stages, by "candidates", "summaries", "validity" or "ranking".
        settings: all settings at once; `k` and `options` replace single ones.
        **options: settings by name, see `Settings`.

    Returns:
        The answer with every stage.

    Raises:
        InputError: an empty question, a passage that is none, an unknown setting or a value that cannot be.
        ContextOverflowError: a prompt is longer than the reader's context, with on_overflow="error".
    """
    result = ask(reader, question, passages, method="sure", readers=readers, settings=settings, k=k, **options)
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
        As `answer`; InputError for an unknown method, or one whose needs are not met.
    """
    example = Example(make_question(question), make_passages(passages), answers=list(answers))
    chosen = make_settings(settings, options)
    outcome = run_group([(example, method)], chosen, Readers(reader, readers))[0]
    if outcome.error is not None:
        raise outcome.error
    assert outcome.value is not None
    return outcome.value


def run_group(
    items: Sequence[tuple[Example, str]], settings: Settings, readers: Readers, journal: Journal | None = None
) -> list[Outcome[Result]]:
    """Answer examples together, each by a method; results carry their costs and ids."""
    from fastreader.sure.variants import find_method

    programs, tasks = [], []
    for example, name in items:
        method = find_method(name)
        method.check(settings, example)
        task = Task(example.question.strip(), list(example.passages), settings, readers, list(example.answers))
        programs.append(method.program(task))
        tasks.append(task)
    with ExitStack() as stack:
        # Of several questions packed together each stage is one call; keeping pays for one.
        read = stack.enter_context(keeping(tasks[0])) if len(tasks) == 1 and method.rereads else None
        outcomes: list[Outcome[Result]] = run([(p, t.readers) for p, t in zip(programs, tasks, strict=True)], journal)
    for (example, name), outcome in zip(items, outcomes, strict=True):
        if read is not None:
            outcome.costs = {"passages": read, **outcome.costs}
        if outcome.value is not None:
            facts: dict[str, Any] = {
                "costs": outcome.costs,
                "id": example.id,
                "method": name,
                "readers": readers.describe(),
            }
            outcome.value = dataclasses.replace(outcome.value, **facts)
        elif outcome.error is None:
            raise InputError(f"method {name!r} ended without a result")
    return outcomes
