"""Define a task, which is one question with all that answering it needs, and a method, which answers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fastreader.core.checked import checked
from fastreader.core.checks import require
from fastreader.core.protocol import Generation, TextOrTokens
from fastreader.data import Passage
from fastreader.reader.programs.readers import Readers
from fastreader.reader.programs.requests import Program
from fastreader.sure.settings import Settings
from fastreader.sure.types import MethodResult, Result

STAGES = ("candidates", "summaries", "validity", "ranking", "answers", "reasoning", "selection", "verification")


@dataclass
class Task:
    """The input of a program.

    Attributes:
        question, passages: from one example.
        settings: all settings.
        readers: readers by stage.
        answers: the right answers, if known; only the oracle reads them.
        notes: remarks about this answer for the user; programs append to it.
    """

    question: str
    passages: list[Passage]
    settings: Settings
    readers: Readers
    answers: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def prompt(self, stage: str, pieces: Sequence[str]) -> TextOrTokens:
        """Return the prompt of `pieces` for the stage's reader."""
        t = self.settings.template
        return self.readers.of(stage).prompt(pieces, system=t.system, chat=t.chat, chat_options=t.chat_options)

    def label(self, stage: str, text: str, *, end: bool = False) -> TextOrTokens:
        """Return `text` as an answer of the stage's reader to be scored, and with `end` as the whole answer."""
        t = self.settings.template
        return self.readers.of(stage).continuation(
            text, end=end, system=t.system, chat=t.chat, chat_options=t.chat_options
        )

    def after_passages(
        self, stage: str, tails: Sequence[Sequence[str]], passages: Sequence[Passage]
    ) -> list[TextOrTokens]:
        """Return a prompt for each tail: the passages, then the pieces of the tail."""
        pieces = self.settings.template.passages(passages)
        return [self.prompt(stage, [*pieces, *tail]) for tail in tails]

    def fitting(
        self, stage: str, build: Callable[[list[Passage]], list[TextOrTokens]], new_tokens: int
    ) -> list[TextOrTokens]:
        """Return prompts over the passages, or over fewer of them if they are too long and the settings allow it.

        Args:
            stage: the stage whose reader will read the prompts.
            build: makes the prompts from passages.
            new_tokens: number of new tokens that must fit after each prompt.

        Returns:
            The prompts. Without on_overflow="drop_passages", or if the reader states no context length or no number
            of passages fits, they contain all passages, and a call may raise ContextOverflowError.
        """
        prompts = build(self.passages)
        limit = getattr(self.readers.of(stage), "max_length", None)
        if self.settings.on_overflow != "drop_passages" or limit is None:
            return prompts
        for count in range(len(self.passages), -1, -1):
            shorter = build(self.passages[:count])
            if all(isinstance(p, str) or len(p) + new_tokens <= limit for p in shorter):
                if count < len(self.passages):
                    left_out = len(self.passages) - count
                    self.notes.append(
                        f"{stage}: the last {left_out} of {len(self.passages)} passages were left out; with "
                        f"{new_tokens} new tokens the prompt would exceed the context of {limit} tokens"
                    )
                return shorter
        return prompts

    def note_cut(
        self,
        stage: str,
        replies: Sequence[Generation],
        read: Callable[[str], Any] = str,
        *,
        what: str = "the reply",
    ) -> None:
        """Note how many replies were cut, at their own limit or that of the context.

        Args:
            stage: the stage that requested the replies.
            replies: the texts written.
            read: extracts the part of a text that is used; a cut that cannot have changed that part is not noted.
            what: names the reply if there is only one.
        """
        count = longest = 0
        for reply in replies:
            if reply.finish_reason == "length" and read(reply.text) != read(reply.text + "x"):
                count, longest = count + 1, max(longest, len(reply.token_ids))
        if count:
            who = f"{what} was" if len(replies) == 1 else f"{count} of {len(replies)} replies were"
            self.notes.append(f"{stage}: {who} cut at {longest} tokens before its end")


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
