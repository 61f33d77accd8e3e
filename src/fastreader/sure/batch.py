"""sure.answer_many: many questions, each stage packed over a group of them, safe to kill and to continue."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastreader.core.checks import check_int, check_text
from fastreader.core.progress import track
from fastreader.core.protocol import ReaderProtocol
from fastreader.data import Example
from fastreader.data.keyed import keyed
from fastreader.errors import ContextOverflowError, FastreaderError, InputError, NumericsError, OutOfBudgetError
from fastreader.reader.programs.readers import Readers
from fastreader.sure.pipeline import Job, run_group
from fastreader.sure.settings import Settings, make_settings
from fastreader.sure.store import Store
from fastreader.sure.task import STAGES
from fastreader.sure.types import Result

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
        InputError: as `answer`; `output` holds results and `resume` is off, or was made with other settings; or
            `resume` with an encoder that is a function without a name of its own (a lambda, say).
    """
    from fastreader.sure.variants import find_method

    chosen = make_settings(settings, options)
    find_method(method)
    check_int("group", group)
    serving = Readers(reader, readers, STAGES)
    facts = {"method": method, "options": chosen.to_dict(), "readers": serving.guarding()}
    stack = ExitStack()
    if output is not None and resume:
        chosen.check_named()
    store = None if output is None else stack.enter_context(Store(Path(output), facts, resume))
    return _results(stack, store, examples, method, chosen, serving, group, progress, on_error)


def _results(
    stack: ExitStack,
    store: Store | None,
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
            failed: list[tuple[int, Example, FastreaderError]] = []
            for index, example in chunk:
                known = None if store is None else store.result(_key(example), example)
                if known is not None:
                    ready[index] = known
                    continue
                try:
                    check_text("question", example.question)
                    todo.append((index, replace(example, question=example.question.strip())))
                except InputError as error:
                    failed.append((index, example, error))
            journal = None if store is None else store.journal([_key(example) for _, example in todo])
            outcomes = run_group([Job(example, method, settings, readers) for _, example in todo], journal)
            for (index, example), outcome in zip(todo, outcomes, strict=True):
                if outcome.value is None:
                    assert outcome.error is not None
                    failed.append((index, example, outcome.error))
                    continue
                ready[index] = outcome.value
                if store is not None:
                    store.keep(_key(example), example, outcome.value)
            for failure in sorted(failed, key=lambda each: each[0]):  # after what was answered beside them is kept
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


def _key(example: Example) -> str:
    assert example.id is not None  # `keyed` has seen to it
    return example.id
