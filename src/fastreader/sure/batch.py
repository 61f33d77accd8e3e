"""sure.answer_many: many questions, each stage packed over a group of them, safe to kill and to continue."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fastreader.data import Example
from fastreader.errors import ContextOverflowError, FastreaderError, InputError, NumericsError, OutOfBudgetError
from fastreader.jsonl import ResultLog, iter_results
from fastreader.progress import track
from fastreader.protocol import Generation, Loglikelihood, ReaderProtocol
from fastreader.sure.lockstep import Replies
from fastreader.sure.pipeline import run_group
from fastreader.sure.requests import Request, Score
from fastreader.sure.settings import Settings, make_settings
from fastreader.sure.task import Readers, make_question
from fastreader.sure.types import Result, StageCost, result_from_dict

OnError = Callable[[int, Example, FastreaderError], object]


def answer_many(
    reader: ReaderProtocol,
    examples: Iterable[Example],
    *,
    method: str = "sure",
    readers: Mapping[str, ReaderProtocol] | None = None,
    settings: Settings | None = None,
    group: int = 8,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool | None = None,
    on_error: OnError | None = None,
    **options: Any,
) -> Iterator[Result]:
    """Answer many questions by SuRe or another method of `variants.METHODS`.

    Args:
        reader, readers, settings, **options: as for `answer`.
        examples: questions with passages; read as they are needed.
        method: its name.
        group: questions whose stages are packed together. More share less memory each and decode faster together;
            results do not depend on it beyond rounding.
        output: a .jsonl file that every result is appended to. Beside it, in "<output>.steps", stand the replies of
            unfinished questions until the end, so that a run killed in the middle of a group loses no reply it had.
        resume: continue `output`: its results are given again without asking the reader.
        progress: a bar on standard error; None: on a terminal.
        on_error: called with (index, example, error) for a question that cannot be answered, which is then left out;
            without it the error is raised, naming the question.

    Returns:
        An iterator of results in the order of the examples; nothing runs before it is asked.

    Raises:
        InputError: as `answer`; `output` holds results and `resume` is off, or was made with other settings.
    """
    from fastreader.sure.variants import find_method

    chosen = make_settings(settings, options)
    find_method(method)
    if isinstance(group, bool) or not isinstance(group, int) or group < 1:
        raise InputError(f"group: expected a whole number from 1, got {group!r}")
    serving = Readers(reader, readers)
    facts = {"method": method, "options": chosen.to_dict(), "readers": serving.describe()}
    stack = ExitStack()
    store = None if output is None else stack.enter_context(_Store(Path(output), facts, resume))
    return _results(stack, store, examples, method, chosen, serving, group, progress, on_error)


def _results(
    stack: ExitStack,
    store: _Store | None,
    examples: Iterable[Example],
    method: str,
    settings: Settings,
    readers: Readers,
    group: int,
    progress: bool | None,
    on_error: OnError | None,
) -> Iterator[Result]:
    total = len(examples) if isinstance(examples, Sized) else None
    with stack, track("answering", total, "questions", progress) as advance:
        numbered = enumerate(keyed(examples))
        while chunk := list(itertools.islice(numbered, group)):
            ready: dict[int, Result] = {}
            todo = []
            for index, example in chunk:
                known = None if store is None else store.result(example)
                if known is not None:
                    ready[index] = known
                    continue
                try:
                    todo.append((index, replace(example, question=make_question(example.question))))
                except InputError as error:
                    _report(on_error, index, example, error)
            journal = None if store is None else store.journal([example for _, example in todo])
            outcomes = run_group([(example, method) for _, example in todo], settings, readers, journal)
            failed: list[tuple[int, Example, FastreaderError]] = []
            for (index, example), outcome in zip(todo, outcomes, strict=True):
                if outcome.value is None:
                    assert outcome.error is not None
                    failed.append((index, example, outcome.error))
                    continue
                ready[index] = outcome.value
                if store is not None:
                    store.keep(example, outcome.value)
            for failure in failed:  # after what was answered beside them is kept
                _report(on_error, *failure)
            for index, _ in chunk:
                advance(1)
                if index in ready:
                    yield ready[index]
        if store is not None:
            store.finish()


def _report(on_error: OnError | None, index: int, example: Example, error: FastreaderError) -> None:
    if on_error is None:
        if type(error) in (InputError, ContextOverflowError, OutOfBudgetError, NumericsError):
            raise type(error)(f"example {example.id}: {error}") from error
        raise error
    on_error(index, example, error)


def keyed(examples: Iterable[Example]) -> Iterator[Example]:
    """Examples each with an id of its own: its place where it has none, a number behind one that is taken."""
    taken: dict[str, int] = {}
    for index, example in enumerate(examples):
        key = name = str(index) if example.id is None else example.id
        while key in taken:
            taken[name] += 1
            key = f"{name}#{taken[name]}"
        taken[key] = 1
        yield replace(example, id=key)


class _Store:
    """The log of results, and beside it that of the replies of unfinished questions; a context manager."""

    def __init__(self, path: Path, facts: dict[str, Any], resume: bool) -> None:
        steps = path.with_name(path.name + ".steps")
        self._log = ResultLog(path, settings=facts, resume=resume)
        try:
            self._rows = {row["id"]: row for row in iter_results(path)}
            self._steps = ResultLog(steps, settings=facts, resume=resume)
        except BaseException:
            self._log.close()
            raise
        self._replies = {row["id"]: row for row in iter_results(steps)}
        self._complete = False

    def result(self, example: Example) -> Result | None:
        """The result the file holds; None where it holds none."""
        assert example.id is not None
        if not self._log.holds(example.id, _digest(example)):
            return None
        return result_from_dict(self._rows[example.id])

    def keep(self, example: Example, result: Result) -> None:
        """Append a result."""
        assert example.id is not None
        values = {k: v for k, v in result.to_dict().items() if k != "id"}
        self._log.append(example.id, values, example=_digest(example))

    def journal(self, examples: list[Example]) -> _Steps:
        """Replies of a group of examples."""
        return _Steps(self._steps, self._replies, [str(example.id) for example in examples])

    def finish(self) -> None:
        """Everything is answered: the replies are not needed any more."""
        self._complete = True

    def __enter__(self) -> _Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        self._steps.close()
        if self._complete:
            self._steps.path.unlink()


class _Steps:
    """The journal of one group, kept in a log of replies."""

    def __init__(self, log: ResultLog, rows: dict[str, dict[str, Any]], names: list[str]) -> None:
        self._log, self._rows, self._names = log, rows, names

    def recall(self, index: int, step: int, request: Request) -> tuple[Replies, StageCost] | None:
        key = f"{step}:{self._names[index]}"
        if not self._log.holds(key, _request_digest(request)):
            return None
        row = self._rows[key]
        if isinstance(request, Score):
            replies: Replies = [Loglikelihood(**values) for values in row["replies"]]
        else:
            replies = [[Generation(**values) for values in texts] for texts in row["replies"]]
        return replies, StageCost(**row["cost"])

    def record(self, index: int, step: int, request: Request, replies: Replies, cost: StageCost) -> None:
        key = f"{step}:{self._names[index]}"
        values = [asdict(r) if isinstance(request, Score) else [asdict(g) for g in r] for r in replies]
        self._log.append(key, {"replies": values, "cost": asdict(cost)}, example=_request_digest(request))


def _digest(example: Example) -> str:
    """Of all texts a result is made from."""
    return _hash([example.question, [[p.title, p.text, p.score] for p in example.passages], example.answers])


def _request_digest(request: Request) -> str:
    return _hash([type(request).__name__, asdict(request)])


def _hash(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, default=list).encode()).hexdigest()[:16]
