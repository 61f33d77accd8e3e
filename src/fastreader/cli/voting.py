"""What `fastreader vote` and `fastreader eor` share: the voter's options, fitting, and how winners are shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fastreader.cli.options import Format
from fastreader.errors import InputError

if TYPE_CHECKING:
    from fastreader.eor import Answers, Vote, Voter

SimilarityOption = Annotated[
    list[str] | None,
    typer.Option(
        "--similarity",
        "-s",
        help="exact, f1, bertscore[:ENCODER] or nli:MODEL; repeat. exact and f1 by default.",
        show_default=False,
    ),
]
PoolingOption = Annotated[str, typer.Option(help="mean, max, majority or plurality.")]
WeightsOption = Annotated[
    Path | None, typer.Option("--weights", "-w", help="A voter that --save wrote.", show_default=False)
]
FitOption = Annotated[bool, typer.Option("--fit", help="Learn the weights from the file's right answers first.")]
MeasureOption = Annotated[str, typer.Option(help="What --fit maximises: em, f1 or contained.")]
SaveOption = Annotated[
    Path | None, typer.Option("--save", help="Write the fitted voter to this .json file.", show_default=False)
]
SupportOption = Annotated[
    float | None, typer.Option(help="Abstain when the winner's support is below.", show_default=False)
]


def make_voter(
    similarity: list[str] | None,
    pooling: str,
    weights: Path | None,
    fit: bool,
    save: Path | None,
    min_support: float | None,
    seed: int,
) -> Voter:
    """The voter of the options.

    Raises:
        InputError: options that exclude each other, or a file of weights that is none.
    """
    from fastreader.eor import Voter

    if save is not None and not fit:
        raise InputError("--save: needs --fit, which makes the voter to save")
    if weights is None:
        return Voter(tuple(similarity or ("exact", "f1")), pooling=pooling, min_support=min_support, seed=seed)
    if fit:
        raise InputError("--weights: goes without --fit, which learns others")
    if similarity or pooling != "mean":
        raise InputError("--weights: brings its own similarities and pooling")
    voter = Voter.load(weights)
    return voter if min_support is None else voter.set_params(min_support=min_support)


def fit_voter(voter: Voter, answers: Sequence[Answers], measure: str, save: Path | None) -> None:
    """Fit on the answers' right ones, say how it went on standard error, and save."""
    from fastreader.eor import correctness

    correct = correctness(answers, measure)
    voter.fit(answers, correct)
    report, names = voter.fit_report_, answers[0].retrievers
    assert report is not None
    best = int(correct.mean(axis=0).argmax())
    typer.echo(
        f"{measure} on the {report.questions} questions of the fit: {report.objective:.3f} (equal weights "
        f"{report.unweighted:.3f}, best retriever {names[best]} {correct.mean(axis=0)[best]:.3f})",
        err=True,
    )
    weights = sorted(zip(names, voter.retriever_weights_.tolist(), strict=True), key=lambda pair: -pair[1])
    typer.echo("weights: " + ", ".join(f"{name} {w:.2f}" if w else f"{name} dropped" for name, w in weights), err=True)
    if save is not None:
        voter.save(save)


def show(rows: Sequence[tuple[Answers, Vote]], format: Format) -> None:
    """Votes to standard output."""
    if format is Format.table:
        _table(rows)
        return
    dicts: list[dict[str, Any]] = [
        {"id": answers.id, "question": answers.question, "retrievers": answers.retrievers, **vote.to_dict()}
        for answers, vote in rows
    ]
    if format is Format.json:
        typer.echo(json.dumps(dicts, ensure_ascii=False, allow_nan=False, indent=1))
        return
    for row in dicts:
        typer.echo(json.dumps(row, ensure_ascii=False, allow_nan=False))


def _table(rows: Sequence[tuple[Answers, Vote]]) -> None:
    from rich.table import Table

    from fastreader.report.tables import UNLIMITED

    table = Table("id", "question", "answer", "retriever", "support")
    for answers, vote in rows:
        support = "" if vote.winner is None else f"{vote.support[vote.winner]:.2f}"
        said = f"none: {vote.abstained}" if vote.answer is None else vote.answer
        table.add_row(answers.id or "", answers.question, said, vote.retriever or "", support)
    console = Console()
    (console if console.is_terminal else Console(width=UNLIMITED)).print(table)
