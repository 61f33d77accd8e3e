"""The methods behind `fastreader ask`: what each is told, and how its answers are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fastreader.cli.inputs import remaining
from fastreader.data import Example
from fastreader.errors import FastreaderError, InputError
from fastreader.jsonl import ResultLog
from fastreader.progress import track

if TYPE_CHECKING:
    from fastreader.moi.answer import MoiAnswer
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
        bias, order, max_passages: MoI's.
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
    max_passages: int | None
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


@dataclass(frozen=True)
class _Answered:
    """MoI's answer to one example."""

    id: str | None
    question: str
    answer: MoiAnswer

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"id": self.id, "question": self.question, "method": "moi", **self.answer.to_dict()}


def _moi_names() -> Mapping[str, object]:
    return {"moi": None}


def _moi_answers(reader: ReaderProtocol, questions: Iterator[Example], asking: Asking) -> Iterator[Result]:
    from fastreader import moi
    from fastreader.reader import Reader

    if not isinstance(reader, Reader):
        raise InputError(f"--method moi: needs fastreader's own reader, got {type(reader).__name__}")
    options: dict[str, Any] = {"order": asking.order, "max_passages": asking.max_passages}
    options |= {"on_overflow": asking.on_overflow}
    told = {name: value for name, value in options.items() if value is not None}
    bias = moi.PositionBias.load(asking.bias) if asking.bias else None
    settings = {**told, "method": "moi", "reader": reader.describe(), "bias": bias.to_dict() if bias else None}
    log = None if asking.output is None else ResultLog(asking.output, settings=settings, resume=asking.resume)
    digests: dict[str, str] = {}
    with log or nullcontext(), track("answering", None, "questions", asking.progress) as advance:
        for index, example in enumerate(remaining(questions, None, False, log, digests)):
            try:
                found = moi.answer(reader, example, bias=bias, candidates=[], **told)
            except FastreaderError as error:
                if asking.on_error is None:
                    raise
                asking.on_error(index, example, error)
                continue
            result = _Answered(example.id, example.question, found)
            if log is not None:
                assert example.id is not None
                values = {name: value for name, value in result.to_dict().items() if name != "id"}
                log.append(example.id, values, example=digests.pop(example.id))
            yield result
            advance(1)


def _moi_line(result: _Answered) -> RenderableType:
    return Text.assemble((result.question, "bold"), "  ", (result.answer.text, "green"))


def _moi_explain(result: _Answered) -> RenderableType:
    ranked = result.answer.ranked
    table = Table(title=Text(result.question), title_justify="left")
    for head in ("read", "retrieved as", "utility", "passage"):
        table.add_column(head)
    for place, passage in enumerate(ranked.passages):
        utility = "" if passage.utility is None else f"{passage.utility:+.2f}"
        text = passage.passage.title or passage.passage.text
        table.add_row(str(place + 1), str(passage.index + 1), utility, Text(text, overflow="ellipsis", no_wrap=True))
    parts: list[RenderableType] = [table, Text(result.answer.text, style="green")]
    if ranked.note:
        parts.append(Text(f"Caution: {ranked.note}.", style="yellow"))
    return Group(*parts)


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
