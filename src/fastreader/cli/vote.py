"""fastreader vote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastreader.cli.options import AdapterOption, Format, SeedOption
from fastreader.cli.votes import show
from fastreader.cli.voting import (
    FitOption,
    MetricOption,
    PoolingOption,
    SaveOption,
    SimilarityOption,
    SupportOption,
    VoterOption,
    check_right,
    fit_voter,
    read_voting,
)
from fastreader.core.checks import expect, located, require
from fastreader.data.read import lines, parse_json

if TYPE_CHECKING:
    from fastreader.core.protocol import ReaderProtocol
    from fastreader.eor import Answers


def vote(
    file: Annotated[
        Path,
        typer.Argument(
            help="Lines {question, predictions{retriever: text or null}, answers}, as `fastreader eor -o` writes."
        ),
    ],
    similarity: SimilarityOption = None,
    pooling: PoolingOption = "mean",
    voter: VoterOption = None,
    fit: FitOption = False,
    metric: MetricOption = "em",
    save: SaveOption = None,
    min_support: SupportOption = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="The reader behind the similarity nli:reader.", show_default=False),
    ] = None,
    adapter: AdapterOption = None,
    seed: SeedOption = 0,
    format: Annotated[Format, typer.Option("--format", "-f", help="table, json or jsonl.")] = Format.table,
) -> None:
    """Let the answers of several retrievers vote; print a winner for each question.

    Examples:

      fastreader vote answers.jsonl

      fastreader vote train.jsonl --fit --save voter.json

      fastreader vote test.jsonl --voter voter.json -f jsonl
    """
    from fastreader.eor.types import aligned

    voting = read_voting(similarity, pooling, voter, fit, metric, save, min_support, seed)
    fits = voting.needs_reader == (model is not None)
    require(fits, "--model: required with the similarity nli:reader, and only with it")
    rows = aligned(_read(file))
    voting.check_retrievers(rows[0].retrievers)
    if fit:
        check_right(rows)
    fitted = voting.voter(_reader(model, adapter))
    if fit:
        fit_voter(fitted, rows, voting)
    show(list(zip(rows, fitted.vote(rows), strict=True)), format)


def _reader(model: str | None, adapter: str | None) -> ReaderProtocol | None:
    require(model is not None or adapter is None, "--adapter: is merged into a --model")
    if model is None:
        return None
    from fastreader.reader.reader import Reader

    return Reader.load(model, adapter=adapter)


def _read(file: Path) -> list[Answers]:
    from fastreader.eor import Answers

    rows = []
    for number, line in lines(Path("/dev/stdin") if file == Path("-") else file):
        if line.strip():
            with located(f"{file}, line {number}"):
                row: Any = parse_json(line)
                require(isinstance(row, dict), "expected an object")
                rows.append(Answers.from_dict(row))
    expect(bool(rows), str(file), "the answers to at least one question", rows)
    return rows
