"""Define a method: a named program, and its requirements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fastreader.core.checked import checked
from fastreader.core.checks import require
from fastreader.reader.programs.requests import Program
from fastreader.sure.task import Task
from fastreader.sure.types import MethodResult, Result


@checked
@dataclass(frozen=True)
class Variant:
    """One way to answer a question.

    Attributes:
        name: the name in `METHODS`, or "name@N" for the method over the first N passages.
        about: one line.
        program: answers one question.
        needs: some of "passages", "shots" (in the settings) and "answers" (of the example).
        takes: the settings that it depends on, among those that are specific to some methods.
        rereads: whether it asks for candidates and then for summaries of the same passages.
        first: maximum number of passages it reads; None for all.
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

    def run(self, task: Task) -> Program[Result]:
        """Run the program, or raise InputError at its first step if the task lacks something the method needs."""
        found = {"passages": task.passages, "shots": task.settings.shots, "answers": task.answers}
        for need in self.needs:
            require(bool(found[need]), f"method {self.name!r}: needs {need}, got none")
        if self.reads and not task.passages:
            task.notes.append("there are no passages; the answer is from memory")
        result = yield from self.program(task)
        return result

    def limited(self, count: int) -> Variant:
        """Return the method over the first `count` passages."""

        def program(task: Task) -> Program[Result]:
            return self.program(replace(task, passages=task.passages[:count]))

        return replace(self, name=f"{self.name}@{count}", program=program, first=count)


def finished(task: Task, answer: str, **details: Any) -> MethodResult:
    """Return the result of a method without name, id, readers and costs, which `run_group` adds."""
    return MethodResult(task.question, answer, "", len(task.passages), details=details, notes=task.notes)
