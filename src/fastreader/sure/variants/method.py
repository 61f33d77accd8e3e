"""Method: a program with a name, and what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fastreader.data import Example
from fastreader.errors import InputError
from fastreader.reader.programs.requests import Program
from fastreader.sure.settings import Settings
from fastreader.sure.task import Task
from fastreader.sure.types import MethodResult, Result


@dataclass(frozen=True)
class Method:
    """One way to answer a question.

    Attributes:
        name: as in `METHODS`; with "@N" behind it, of the first N passages alone.
        about: one line.
        program: answers one question.
        needs: some of "passages", "shots" (in the settings) and "answers" (of the example).
        takes: settings it depends on, of those that are about single methods.
        rereads: whether it asks for candidates and then for summaries of the same passages.
        first: it reads this many passages at most; None for all.
        reads: whether it reads passages at all.
    """

    name: str
    about: str
    program: Callable[[Task], Program[Result]]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    rereads: bool = False
    first: int | None = None
    reads: bool = True

    def check(self, settings: Settings, example: Example) -> None:
        """Raise InputError where a need is not met."""
        there = {"passages": example.passages, "shots": settings.shots, "answers": example.answers}
        for need in self.needs:
            if not there[need]:
                raise InputError(f"method {self.name!r}: needs {need}, got none")

    def limited(self, count: int) -> Method:
        """The same of the first `count` passages."""

        def program(task: Task) -> Program[Result]:
            result = yield from self.program(replace(task, passages=task.passages[:count]))
            return result

        return replace(self, name=f"{self.name}@{count}", program=program, first=count)


def finished(task: Task, answer: str, **details: Any) -> MethodResult:
    """The result of a method; its name, id and costs are put in by whoever runs it."""
    return MethodResult(
        question=task.question,
        answer=answer,
        method="",
        num_passages=len(task.passages),
        readers=task.readers.describe(),
        details=details,
        notes=task.notes,
    )
