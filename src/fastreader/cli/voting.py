"""The voter of `fastreader vote` and `fastreader eor`: its options, checked before costly work, and its fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from fastreader.cli.inputs import check_writable
from fastreader.cli.options import Format, SeedOption
from fastreader.cli.output import write_json
from fastreader.cli.screen import Screen, say
from fastreader.core.checks import check_choice, check_seed, expect, located, require
from fastreader.data.files import read_object
from fastreader.data.types import Example

if TYPE_CHECKING:
    from rich.table import Table

    from fastreader.core.protocol import ReaderProtocol
    from fastreader.eor import Answers, Vote, Voter

READER = "nli:reader"


@dataclass(frozen=True)
class VoterArguments:
    """Say how answers are compared and counted, and whether weights are learned."""

    panel: ClassVar[str] = "Voter"
    similarity: Annotated[
        list[str] | None,
        typer.Option(
            "--similarity",
            "-s",
            help="exact, exact:words (EoR's EM), f1, bertscore[:ENCODER], nli:MODEL or nli:reader; repeat.",
            show_default="exact and f1",
        ),
    ] = None
    pooling: Annotated[str, typer.Option(help="mean, max, majority or plurality.")] = "mean"
    voter: Annotated[Path | None, typer.Option("--voter", help="A voter that --save wrote.", show_default=False)] = None
    fit: Annotated[bool, typer.Option("--fit", help="First learn the weights from the file's right answers.")] = False
    metric: Annotated[
        str, typer.Option(help="Metric of the accuracy, which --fit maximises: em, f1, contained or words.")
    ] = "em"
    save: Annotated[
        Path | None, typer.Option("--save", help="Write the fitted voter to this .json file.", show_default=False)
    ] = None
    min_support: Annotated[
        float | None, typer.Option(help="Abstain if the winner's support is below this.", show_default=False)
    ] = None
    seed: SeedOption = 0

    def check(self) -> Voting:
        """Return the voter's options, checked as far as possible without loading a model.

        Raises:
            InputError: if options exclude each other, a name is unknown, a similarity's model cannot exist, the file
                of --voter is not a voter, or --save cannot be written.
        """
        from fastreader.eor import measures
        from fastreader.eor.scoring import POOLINGS
        from fastreader.eor.similarity.loading import check_names
        from fastreader.eor.voter import saved_similarities

        support = self.min_support
        expect(support is None or not math.isnan(support), "--min-support", "a number", support)
        require(self.fit or self.save is None, "--save: needs --fit, which makes the voter to save")
        check_choice("--metric", self.metric, measures.MEASURES)
        check_seed("--seed", self.seed)
        if self.save is not None:
            check_writable("--save", self.save)
        saved, names, pooling = None, tuple(self.similarity or ("exact", "f1")), self.pooling
        if self.voter is not None:
            require(not self.fit, "--voter: cannot be combined with --fit, which learns a voter")
            plain = not self.similarity and pooling == "mean"
            require(plain, "--voter: brings its own similarities and pooling")
            saved = read_object(self.voter)
            names = saved_similarities(saved)
            pooling = str(saved["parameters"].get("pooling", pooling))
        check_choice("pooling", pooling, POOLINGS)
        voting = Voting(self, names, pooling, saved)
        if not voting.needs_reader:
            voting.voter().resolved()
        with located("--similarity" if self.voter is None else "--voter"):
            check_names(names)
        return voting


@dataclass(frozen=True)
class Voting:
    """The voter's options, checked.

    Attributes:
        given: the options.
        similarities: names.
        pooling: how `Voter` pools similarities.
        saved: the values of --voter; None without it.
    """

    given: VoterArguments
    similarities: tuple[str, ...]
    pooling: str
    saved: dict[str, Any] | None

    @property
    def needs_reader(self) -> bool:
        """Whether a similarity uses the reader."""
        return READER in self.similarities

    def settings(self) -> dict[str, Any]:
        """Return the settings that votes depend on, as JSON values."""
        return {
            "similarities": list(self.similarities),
            "pooling": self.pooling,
            "min_support": self.given.min_support,
            "weights": self.saved,
        }

    def voter(self, reader: ReaderProtocol | None = None) -> Voter:
        """Create the unfitted voter, with a reader for nli:reader."""
        from fastreader.eor import Voter
        from fastreader.eor.similarity import resolve

        used = [resolve(name, reader=reader) for name in self.similarities]
        support = self.given.min_support
        if self.saved is None:
            return Voter(used, pooling=self.pooling, min_support=support, seed=self.given.seed)
        voter = Voter.from_dict(self.saved, similarities=used)
        return voter if support is None else voter.set_params(min_support=support)

    def check_retrievers(self, names: Sequence[str]) -> None:
        """Check that the voter of --voter, if there is one, was fitted on these retrievers."""
        saved, mine = self.saved or {"parameters": {}}, ", ".join(names)
        fitted = saved.get("fitted") or {}
        given = saved["parameters"].get("retriever_weights")
        named = fitted.get("retrievers") or (list(given) if isinstance(given, dict) else names)
        expect(sorted(named) == sorted(names), "--voter", f"one fitted on {mine}", ", ".join(named))
        weights = fitted.get("retriever_weights", given)  # by place if there are no names
        ok = weights is None or len(weights) == len(names)
        expect(ok, "--voter", f"one fitted on the {len(names)} retrievers {mine}", weights)


def check_right(rows: Sequence[Answers | Example]) -> None:
    """Check that every question has the right answers that --fit needs."""
    for row in rows:
        right = row.answers if isinstance(row, Example) else row.right
        require(bool(right), f"--fit: needs right answers, and got none for {row.question[:60]!r}")


def fit_voter(voter: Voter, answers: Sequence[Answers], voting: Voting) -> None:
    """Fit on the right answers, report the fit on standard error, and save."""
    from fastreader.eor import correctness

    metric, save = voting.given.metric, voting.given.save
    correct = correctness(answers, metric)
    voter.fit(answers, correct)
    report, names = voter.fit_report_, answers[0].retrievers
    assert report is not None
    best = int(correct.mean(axis=0).argmax())
    say(
        f"{metric} on the {report.questions} questions of the fit: {report.objective:.3f} (equal weights "
        f"{report.unweighted:.3f}, best retriever {names[best]} {correct.mean(axis=0)[best]:.3f})"
    )
    if not report.varying:
        why = f"no question has answers that differ by {metric}"
        if not correct.any():
            why = (
                f"no answer is right by {metric}. If answers are long, --metric contained counts those that contain a "
                "right one, and fastreader eor --texts short asks for short ones"
            )
        say(f"warning: nothing was learned; {why}")
    weights = sorted(zip(names, voter.retriever_weights_.tolist(), strict=True), key=lambda pair: -pair[1])
    say("weights: " + ", ".join(f"{name} {w:.2f}" if w else f"{name} dropped" for name, w in weights))
    if save is not None:
        voter.save(save)


def show(rows: Sequence[tuple[Answers, Vote]], format: Format, metric: str) -> None:
    """Print votes in a format, and how often retrievers and votes are right: with JSON on standard error."""
    from fastreader.cli.tables.scores import UNLIMITED
    from fastreader.cli.tables.votes import accuracy_table, vote_table

    def draw(table: Table, **options: Any) -> None:
        console = Screen(**options)
        (console if console.is_terminal else Screen(width=UNLIMITED, **options)).print(table)

    if format is Format.table:
        draw(vote_table(rows))
    else:
        dicts: list[dict[str, Any]] = [
            {"id": answers.id, "question": answers.question, "retrievers": answers.retrievers, **vote.to_dict()}
            for answers, vote in rows
        ]
        if format is Format.json:
            write_json(dicts, indent=1)
        else:
            for row in dicts:
                write_json(row)
    if (measured := accuracy_table(rows, metric)) is not None:
        draw(measured, stderr=format is not Format.table)
