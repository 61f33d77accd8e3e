"""The methods behind `fastreader ask`: what each is told, and how its answers are shown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from fastreader.cli.ask_options import Asking, Result
from fastreader.data import Example
from fastreader.errors import InputError

if TYPE_CHECKING:
    from fastreader.core.protocol import ReaderProtocol

OPTIONS = {
    "k": "--candidates",
    "mode": "--mode",
    "max_summary_tokens": "--max-summary-tokens",
    "candidates_prompt": "--candidates-prompt",
    "shots": "--shots",
    "weights": "--weights",
    "encoder": "--encoder",
    "batch_size": "--batch-size",
    "on_overflow": "--on-overflow",
    "bias": "--bias",
    "order": "--order",
}
"""Attributes of `Asking` that not every method has a use for, and the options they come from."""


@dataclass(frozen=True)
class AskMethod:
    """A family of methods behind `fastreader ask`.

    Attributes:
        names: the methods it answers by; called when needed, so that nothing loads before.
        takes: which of `OPTIONS` a method, by its name, has a use for.
        answer: gives a result for each example.
        line: a result on one line.
        explain: a result with how it came about.
    """

    names: Callable[[], Mapping[str, object]]
    takes: Callable[[str], Collection[str]]
    answer: Callable[[ReaderProtocol, Iterator[Example], Asking], Iterator[Any]]
    line: Callable[[Any], RenderableType]
    explain: Callable[[Any], RenderableType]


def _sure_names() -> Mapping[str, object]:
    from fastreader.sure.variants import METHODS

    return METHODS


def _sure_takes(method: str) -> Collection[str]:
    from fastreader.sure.variants import METHODS

    return {"batch_size", *METHODS[method].takes}


def _sure_answers(reader: ReaderProtocol, questions: Iterator[Example], asking: Asking) -> Iterator[Result]:
    from fastreader import sure

    options: dict[str, Any] = {name: getattr(asking, name) for name in _sure_takes(asking.method.partition("@")[0])}
    if asking.shots is not None:
        options["shots"] = _shots(asking.shots)
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


def _shots(file: Path) -> list[tuple[str, str]]:
    from fastreader.cli.inputs import examples

    answered = list(examples(file, None, None, None, None, None))
    for example in answered:
        if not example.answers:
            raise InputError(f"--shots: {file} has no answer for the question {example.question!r}")
    return [(example.question, example.answers[0]) for example in answered]


def _sure_line(result: Any) -> RenderableType:
    from fastreader.cli.tables.sure import answer_line

    return answer_line(result)


def _sure_explain(result: Any) -> RenderableType:
    from fastreader.cli.tables.sure import explain

    return explain(result)


def _moi_names() -> Mapping[str, object]:
    from fastreader.cli.ask_moi import names

    return names()


def _moi_takes(method: str) -> Collection[str]:
    return ("bias", "order", "on_overflow")


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
    AskMethod(_sure_names, _sure_takes, _sure_answers, _sure_line, _sure_explain),
    AskMethod(_moi_names, _moi_takes, _moi_answers, _moi_line, _moi_explain),
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


def check_options(family: AskMethod, asking: Asking) -> None:
    """Raise InputError for an option that was given and that the method has no use for."""
    for name, option in OPTIONS.items():
        if getattr(asking, name) is not None and name not in family.takes(asking.method.partition("@")[0]):
            users = [method for other in FAMILIES for method in other.names() if name in other.takes(method)]
            raise InputError(f"{option}: --method {asking.method} has no use for it; it is for {', '.join(users)}")


@contextlib.contextmanager
def options_named() -> Iterator[None]:
    """Errors about an argument, which name it as in Python, name the option that it came from."""
    try:
        yield
    except InputError as error:
        name, colon, rest = str(error).partition(":")
        if colon and name in OPTIONS:
            raise InputError(f"{OPTIONS[name]}:{rest}") from error
        raise
