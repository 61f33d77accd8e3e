"""sure.answer_many: many questions, each stage packed over a group of them; a killed run can be resumed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastreader.core.checks import check_int
from fastreader.core.progress import track
from fastreader.core.protocol import ReaderProtocol
from fastreader.data import Example
from fastreader.data.arguments import make_question
from fastreader.data.keyed import keyed
from fastreader.errors import ContextOverflowError, FastreaderError, InputError, NumericsError, OutOfBudgetError
from fastreader.reader.programs.readers import Readers
from fastreader.sure.pipeline import Job, run_group
from fastreader.sure.settings import Settings, make_settings
from fastreader.sure.store import Store
from fastreader.sure.task import STAGES
from fastreader.sure.types import Result
from fastreader.sure.variants import find_method

OnError = Callable[[int, Example, FastreaderError], object]


def answer_many(
    reader: ReaderProtocol,
    examples: Iterable[Example],
    *,
    method: str = "sure",
    readers: Mapping[str, ReaderProtocol] | None = None,
    settings: Settings | None = None,
    batch_size: int = 8,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool | None = None,
    on_error: OnError | None = None,
    **options: Any,
) -> Iterator[Result]:
    """Answer many questions by SuRe or another method of `variants.METHODS`.

    Args:
        reader, method, readers, settings, **options: as for `ask`.
        examples: questions with passages, read lazily.
        batch_size: number of questions whose stages are packed together. More share less memory each and decode faster
            together; results do not depend on it beyond rounding.
        output: a .jsonl file to which every result is appended. Replies of unfinished questions are saved beside it in
            "<output>.checkpoint" until the end, so that a run killed within a batch loses no reply.
        resume: continue `output`; its results are returned without a call of the reader.
        progress: whether to show a progress bar on standard error; None shows it on a terminal.
        on_error: called with (index, example, error) for a question that fails, which is then left out; None raises
            the error, which names the question.

    Returns:
        An iterator of results in the order of the examples; nothing runs before its first item is requested.

    Raises:
        InputError: as `ask`; if `output` holds results and `resume` is off, or was made with other settings; or with
            `resume`, if the encoder is a function without a name of its own, such as a lambda.
    """
    chosen = make_settings(settings, options)
    find_method(method)
    check_int("batch_size", batch_size)
    serving = Readers(reader, readers, STAGES)
    facts = {"method": method, "options": chosen.to_dict(), "readers": serving.guarding()}
    if output is not None and resume:
        chosen.check_resumable()
    store = None if output is None else Store(Path(output), facts, resume)

    def job(example: Example) -> Job:
        return Job(replace(example, question=make_question(example.question)), method, chosen, serving)

    return _results(store, examples, job, batch_size, progress, on_error)


def _results(
    store: Store | None,
    examples: Iterable[Example],
    make_job: Callable[[Example], Job],
    batch_size: int,
    progress: bool | None,
    on_error: OnError | None,
) -> Iterator[Result]:
    total = len(examples) if isinstance(examples, Sized) else None
    with ExitStack() as stack:
        if store is not None:
            stack.enter_context(store)
        advance = stack.enter_context(track("answering", total, "questions", progress))
        numbered = enumerate(keyed(examples))
        while batch := list(itertools.islice(numbered, batch_size)):
            ready: dict[int, Result] = {}
            failed: dict[int, FastreaderError] = {}
            jobs: dict[int, Job] = {}
            for index, example in batch:
                known = None if store is None else store.result(str(example.id), example)
                if known is not None:
                    ready[index] = known
                    continue
                try:
                    jobs[index] = make_job(example)
                except InputError as error:
                    failed[index] = error
            checkpoint = None if store is None else store.checkpoint([str(job.example.id) for job in jobs.values()])
            outcomes = run_group(list(jobs.values()), checkpoint)
            for (index, job), outcome in zip(jobs.items(), outcomes, strict=True):
                if outcome.value is not None:
                    ready[index] = outcome.value
                    if store is not None:
                        store.keep(str(job.example.id), job.example, outcome.value)
                elif outcome.error is not None:
                    failed[index] = outcome.error
            for index, example in batch:  # errors are reported once all results of the batch are saved
                if index in failed:
                    _report(on_error, index, example, failed[index])
            for index, _ in batch:
                advance(1)
                if index in ready:
                    yield ready[index]
        if store is not None:
            store.finish()


def _report(on_error: OnError | None, index: int, example: Example, error: FastreaderError) -> None:
    if on_error is not None:
        on_error(index, example, error)
    elif type(error) in (InputError, ContextOverflowError, OutOfBudgetError, NumericsError):
        raise type(error)(f"example {example.id}: {error}") from error
    else:
        raise error
