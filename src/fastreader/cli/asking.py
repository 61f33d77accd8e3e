"""The methods behind `fastreader ask`: what each is told, and how its answers are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import RenderableType

from fastreader.data import Example
from fastreader.errors import FastreaderError, InputError

if TYPE_CHECKING:
    from fastreader.protocol import ReaderProtocol


class Result(Protocol):
    """What every method's result has."""

    @property
    def id(self) -> str | None:
        """The example's identifier."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        ...


@dataclass(frozen=True)
class Asking:
    """What the command line asks of a method; what a method has no use for is left at None.

    Attributes:
        method: its name.
        k: candidates.
        mode: how labels are judged.
        max_summary_tokens: of each summary.
        on_overflow: what to do with prompts that are too long.
        bias, order: MoI's.
        output, resume: file of results, and whether to continue it.
        progress: as everywhere.
        on_error: called for each question that fails; None: raise.
    """

    method: str
    k: int | None
    mode: str | None
    max_summary_tokens: int | None
    on_overflow: str | None
    bias: Path | None
    order: str | None
    output: Path | None
    resume: bool
    progress: bool | None
    on_error: Callable[[int, Example, FastreaderError], object] | None


@dataclass(frozen=True)
class AskMethod:
    """A family of methods behind `fastreader ask`.

    Attributes:
        names: the methods it answers by; called when needed, so that nothing loads before.
        answer: gives a result for each example.
        line: a result on one line.
        explain: a result with how it came about.
    """

    names: Callable[[], Mapping[str, object]]
    answer: Callable[[ReaderProtocol, Iterator[Example], Asking], Iterator[Any]]
    line: Callable[[Any], RenderableType]
    explain: Callable[[Any], RenderableType]


def _sure_names() -> Mapping[str, object]:
    from fastreader.sure.variants import METHODS

    return METHODS


def _sure_answers(reader: ReaderProtocol, questions: Iterator[Example], asking: Asking) -> Iterator[Result]:
    from fastreader import sure

    options: dict[str, Any] = {
        "k": asking.k,
        "mode": asking.mode,
        "max_summary_tokens": asking.max_summary_tokens,
        "on_overflow": asking.on_overflow,
    }
    return sure.answer_many(
        reader,
        questions,
        method=asking.method,
        output=asking.output,
        resume=asking.resume,
        progress=asking.progress,
        on_error=asking.on_error,
        **{name: value for name, value in options.items() if value is not None},
    )


def _sure_line(result: Any) -> RenderableType:
    from fastreader.report.explain import answer_line

    return answer_line(result)


def _sure_explain(result: Any) -> RenderableType:
    from fastreader.report.explain import explain

    return explain(result)


def _moi_names() -> Mapping[str, object]:
    from fastreader.cli.ask_moi import names

    return names()


def _moi_answers(reader: ReaderProtocol, questions: Iterator[Example], asking: Asking) -> Iterator[Result]:
    from fastreader.cli.ask_moi import answers

    return answers(reader, questions, asking)


def _moi_line(result: Any) -> RenderableType:
    from fastreader.cli.ask_moi import line

    return line(result)


def _moi_explain(result: Any) -> RenderableType:
    from fastreader.cli.ask_moi import explain

    return explain(result)


# A method of another package is one more entry.
FAMILIES = [
    AskMethod(_sure_names, _sure_answers, _sure_line, _sure_explain),
    AskMethod(_moi_names, _moi_answers, _moi_line, _moi_explain),
]


def find_family(method: str) -> AskMethod:
    """The family that answers by `method`.

    Raises:
        InputError: none does.
    """
    plain = method.partition("@")[0]
    for family in FAMILIES:
        if plain in family.names():
            return family
    known = [name for family in FAMILIES for name in family.names()]
    raise InputError(f"--method: expected one of {', '.join(known)}, got {method!r}")
