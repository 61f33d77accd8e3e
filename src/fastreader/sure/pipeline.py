"""Answer questions by SuRe and its variants: sure.answer, sure.ask and sure.answer_many."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, check_text, require
from fastreader.core.progress import track
from fastreader.core.protocol import ReaderProtocol
from fastreader.data import Example
from fastreader.data.answer_cache import Cache
from fastreader.data.arguments import keyed
from fastreader.data.documents import PassageLike, as_passages
from fastreader.data.fingerprints import digest
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.errors import ContextOverflowError, FastreaderError, InputError, NumericsError, OutOfBudgetError
from fastreader.reader.programs.checkpoint import Checkpoint
from fastreader.reader.programs.prefix_reader import STAGE, Prefix, PrefixReader
from fastreader.reader.programs.readers import Readers
from fastreader.reader.programs.requests import StageCost
from fastreader.reader.programs.scheduler import ProgramOutcome, run
from fastreader.sure.settings import Settings, make_settings
from fastreader.sure.task import STAGES, Task
from fastreader.sure.types import Result, SureResult, result_from_dict
from fastreader.sure.variants import find_method

if TYPE_CHECKING:
    from fastreader.sure.task import Variant


class Store(contextlib.AbstractContextManager["Store"]):
    """A log of results, and in "<path>.cache" the replies to single requests.

    A store is a context manager. After a kill, programs that run again take their replies from the cache, so that only
    the call in progress is lost. `finish` marks the run complete, and the cache is then removed.

    Raises:
        InputError, OSError: see `ResultLog` and `Cache`.
    """

    def __init__(self, path: Path, settings: dict[str, Any], resume: bool) -> None:
        self._log = ResultLog(path, settings=settings, resume=resume)
        try:
            self._rows = {row["id"]: row for row in iter_results(path)}
            self._cache = Cache(path.with_name(f"{path.name}.cache"))
        except BaseException:
            self._log.close()
            raise
        self._settings, self._complete = digest(settings, 64), False

    def result(self, key: str, example: Example) -> Result | None:
        """Return the saved result of `key`, or None without one.

        Raises:
            InputError: if it was made from another question, other passages or other right answers.
        """
        return result_from_dict(self._rows[key]) if self._log.holds(key, _digest(example)) else None

    def keep(self, key: str, example: Example, result: Result, **more: Any) -> None:
        """Append a result, with more keys on its line, such as metrics."""
        self._rows[key] = {**result.to_dict(), **more}
        self._log.append(key, self._rows[key], example=_digest(example))

    def checkpoint(self, keys: Sequence[str]) -> Checkpoint:
        """Return the checkpoint of programs with these keys."""
        return Checkpoint(self._cache, [f"{self._settings} {key}" for key in keys])

    def finish(self) -> None:
        """Mark the run complete: its replies are no longer needed."""
        self._complete = True

    def __exit__(self, *_: object) -> None:
        self._log.close()
        self._cache.close()
        if self._complete:
            self._cache.path.unlink()


def _digest(example: Example) -> str:
    """Return a digest of all texts that a result is made from."""
    return digest([example.question.strip(), [[p.title, p.text, p.score] for p in example.passages], example.answers])


_REUSING = ("candidates", "summaries")


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
            reader = task.readers.of(_REUSING[0])
            if tokens := _prefix(task, method.first):
                found.setdefault(id(reader), (reader, []))[1].append(Prefix(index, task.notes.append, tokens))
    if not found:
        return []
    made = {key: PrefixReader(reader, prefixes, checkpoint) for key, (reader, prefixes) in found.items()}
    for task, _ in tasks:  # all tasks, so that equal requests to the same reader stay one
        reader = task.readers.of(_REUSING[0])
        if id(reader) in made and reader is task.readers.of(_REUSING[1]):
            task.readers = task.readers.with_stages(made[id(reader)], _REUSING)
    return list(made.values())


def _prefix(task: Task, first: int | None) -> tuple[int, ...]:
    """Return the tokens that both stages' prompts start with, or none if they cannot be cached."""
    t = task.settings.template
    reader: Any = task.readers.of(_REUSING[0])
    pieces = t.passages(task.passages[:first])
    able = hasattr(reader, "prefix") and hasattr(reader, "session") and reader is task.readers.of(_REUSING[1])
    if not able or not any(pieces):
        return ()
    try:
        prefix = tuple(reader.prefix(pieces, system=t.system, chat=t.chat, chat_options=t.chat_options))
    except FastreaderError:  # the stage's own prompts raise the same error, for this question only
        return ()
    limit = getattr(reader, "max_length", None)
    return () if limit is not None and len(prefix) > limit else prefix


OnError = Callable[[int, Example, FastreaderError], object]


@checked
def answer(
    reader: ReaderProtocol, question: str, passages: Iterable[PassageLike], k: int | None = None, **options: Any
) -> SureResult:
    """Answer a question by SuRe: candidates, a summary of the passages for each, and a vote over the summaries.

    Kim et al. 2024, "SuRe: Summarizing Retrievals using Answer Candidates for Open-domain QA of LLMs", Algorithm 1.
    Four rounds of calls: K candidates in one text; K summaries decoded together from one reading of the passages;
    validity, 2 K labels; and ranking, 2 K (K - 1) labels. With mode="loglikelihood" each of the last two is one packed
    pass.

    Args:
        reader: the reader that generates and scores.
        question: the question.
        passages: passages or texts, in the retriever's order.
        k: number of candidates; None takes it from `settings`, by default 2.
        **options: `readers`, `settings` and single settings, same as in `ask`.

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


@checked
def ask(
    reader: ReaderProtocol,
    question: str,
    passages: Iterable[PassageLike],
    *,
    method: str = "sure",
    answers: Sequence[str] = (),
    readers: Mapping[str, ReaderProtocol] | None = None,
    settings: Settings | None = None,
    **options: Any,
) -> Result:
    """Answer a question by any method of `variants.METHODS`.

    Args:
        reader: the reader that generates and scores.
        question: the question.
        passages: passages or texts, in the retriever's order.
        method: name of the method; "name@N" reads only the first N passages.
        answers: the right answers, for the oracle.
        readers: other readers for single stages, by "candidates", "summaries", "validity", "ranking", ...
        settings: all settings at once; None takes the defaults.
        **options: single settings by name, see `Settings`; they override `settings`.

    Raises:
        InputError: as `answer`; or if the method is unknown or lacks what it needs.
        ContextOverflowError: as `answer`.
    """
    check_text("question", question)
    example = Example(question.strip(), as_passages(passages), answers=list(answers))
    chosen = make_settings(settings, options)
    [outcome] = run_group([SureJob(example, method, chosen, Readers(reader, readers, STAGES))])
    if outcome.error is not None:
        raise outcome.error
    assert outcome.value is not None
    return outcome.value


@checked
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
        reader, method, readers, settings, **options: same as in `ask`.
        examples: questions with passages, read lazily.
        batch_size: number of questions whose stages are packed together. More share less memory each and decode faster
            together; results do not depend on it beyond rounding.
        output: a .jsonl file to which every result is appended. Replies of unfinished questions are cached in
            "<output>.cache" until the end, so that a run killed within a batch loses no reply.
        resume: continue `output`; its results are returned without a call of the reader.
        progress: whether to show a progress bar on standard error; None shows it on a terminal.
        on_error: called with (index, example, error) for a question that fails, which is then left out; None raises
            the error, which names the question.

    Returns:
        An iterator of results in the order of the examples; nothing runs before its first item is requested.

    Raises:
        InputError: as `ask`; if `output` holds results and `resume` is off, or was made with other settings; or with
            `resume`, if the encoder is a function without a unique name, such as a lambda.
    """
    chosen = make_settings(settings, options)
    find_method(method)
    check_int("batch_size", batch_size)
    serving = Readers(reader, readers, STAGES)
    facts = {"method": method, "options": chosen.to_dict(), "readers": serving.identity()}
    if output is not None and resume:
        chosen.check_resumable()
    store = None if output is None else Store(Path(output), facts, resume)

    def job(example: Example) -> SureJob:
        check_text("question", example.question)
        return SureJob(replace(example, question=example.question.strip()), method, chosen, serving)

    return _results(store, examples, job, batch_size, progress, on_error)


def _results(
    store: Store | None,
    examples: Iterable[Example],
    make_job: Callable[[Example], SureJob],
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
        while batch := list(itertools.islice(numbered, min(batch_size, sys.maxsize))):
            ready: dict[int, Result] = {}
            failed: dict[int, FastreaderError] = {}
            jobs: dict[int, SureJob] = {}
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


@dataclass(frozen=True)
class SureJob:
    """One example to be answered by one method.

    Attributes:
        example: question, passages, and right answers if known.
        method: name of the method.
        settings, readers: same as in `ask`.
    """

    example: Example
    method: str
    settings: Settings
    readers: Readers


def run_group(jobs: Sequence[SureJob], checkpoint: Checkpoint | None = None) -> list[ProgramOutcome[Result]]:
    """Run jobs together, and return results with costs and ids, or the error of a job that failed."""
    tasks = []
    for job in jobs:
        question, passages = job.example.question.strip(), list(job.example.passages)
        task = Task(question, passages, job.settings, job.readers, list(job.example.answers))
        tasks.append((task, find_method(job.method)))
    read: dict[int, StageCost] = {}
    with ExitStack() as stack:
        prefix_readers = list(map(stack.enter_context, reuse_prefixes(tasks, checkpoint)))
        programs = []
        for task, method in tasks:  # their readers may have been replaced
            programs.append((method.run(task), task.readers))
        outcomes = run(programs, checkpoint)
        for reader in prefix_readers:
            read |= reader.costs
    for index, (job, outcome) in enumerate(zip(jobs, outcomes, strict=True)):
        if index in read:
            outcome.costs = {STAGE: read[index], **outcome.costs}
        require(outcome.value is not None or outcome.error is not None, f"method {job.method!r} gave no result")
        if outcome.value is not None:
            facts: dict[str, Any] = {"costs": outcome.costs, "id": job.example.id, "method": job.method}
            outcome.value = replace(outcome.value, **facts, readers=job.readers.describe())
    return outcomes
