"""MoI behind `fastreader ask`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from fastreader.cli.ask_options import Result
from fastreader.cli.calibrations import UNCALIBRATED
from fastreader.cli.inputs import remaining
from fastreader.core.progress import track
from fastreader.data import Example
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.errors import FastreaderError, InputError

if TYPE_CHECKING:
    from fastreader.cli.ask_options import Asking
    from fastreader.core.protocol import ReaderProtocol

_MOST = 10  # passages read, where no @N says


@dataclass(frozen=True)
class Kept:
    """An answer out of the file of results.

    Attributes:
        id: the question's identifier.
        row: its line.
    """

    id: str | None
    row: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Its line."""
        return self.row


def names() -> Mapping[str, object]:
    """The methods."""
    return {"moi": None}


def answers(reader: ReaderProtocol, questions: Iterator[Example], asking: Asking) -> Iterator[Result]:
    """One after another: those that the file of results has, then the others."""
    from fastreader.data.fingerprints import reader_identity
    from fastreader.moi import PositionBias, answer
    from fastreader.moi.shipped import at_hand
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.reader import Reader

    assert isinstance(reader, Reader)
    bias = None if asking.bias is None else PositionBias.load(asking.bias)
    options: dict[str, Any] = {"max_passages": _passages(asking.method), "order": asking.order or "matched"}
    if asking.on_overflow is not None:
        options["on_overflow"] = asking.on_overflow
    with ExitStack() as stack:
        log = None
        if asking.output is not None:
            facts = {
                "method": "moi",
                "answers": "written",
                **options,
                "reader": reader_identity(reader.describe()),
                "template": Template().to_dict(),
            }
            facts["bias"] = at_hand(reader.describe(), Template().digest()) if bias is None else bias.to_dict()
            log = stack.enter_context(ResultLog(asking.output, settings=facts, resume=asking.resume))
            for row in list(iter_results(asking.output)):
                yield Kept(row["id"], row)
        advance = stack.enter_context(track("answering", None, "questions", asking.progress))
        digests: dict[str, str] = {}
        told = False
        for index, example in enumerate(remaining(questions, [], False, log, digests)):
            try:
                # Written as by the other methods, also where the example brings candidates to choose from.
                found = answer(reader, example, bias=bias, candidates=[], **options)
            except FastreaderError as error:
                if asking.on_error is None:
                    raise type(error)(f"id {example.id}: {error}") from error
                asking.on_error(index, example, error)
                continue
            if log is not None:
                key = example.id
                assert key is not None
                values = {k: v for k, v in found.to_dict().items() if k != "id"} | {"reader": reader.describe()}
                log.append(key, values, example=digests.pop(key))
            if found.ranked.bias_source.startswith("none") and not told:
                typer.echo(f"note: {UNCALIBRATED}", err=True)
                told = True
            advance(1)
            yield found


def line(result: Any) -> RenderableType:
    """Question and answer on one line."""
    row = result.to_dict()
    text = Text(f"{row['question']} ", style="bold")
    return text.append(row["answer"] or "(no answer)", style="green" if row["answer"] else "yellow")


def explain(result: Any) -> RenderableType:
    """The passages in the order they were read, and the answer."""
    from fastreader.cli.tables.moi import ranked_table

    return line(result) if isinstance(result, Kept) else Group(ranked_table(result.ranked), line(result))


def _passages(method: str) -> int:
    """N of "moi@N"."""
    _name, at, number = method.partition("@")
    if not at:
        return _MOST
    if not number.isdecimal() or int(number) < 1:
        raise InputError(f"--method: expected a number of passages behind @, got {method!r}")
    return int(number)
