"""The voter of `fastreader vote` and `fastreader eor`: its options, checked before costly work, and its fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastreader.cli.inputs import check_writable
from fastreader.cli.screen import say
from fastreader.core.checks import check_choice, check_seed, expect, located, require
from fastreader.data.files import read_object
from fastreader.data.types import Example

if TYPE_CHECKING:
    from fastreader.core.protocol import ReaderProtocol
    from fastreader.eor import Answers, Voter

READER = "nli:reader"

SimilarityOption = Annotated[
    list[str] | None,
    typer.Option(
        "--similarity",
        "-s",
        help="exact, f1, bertscore[:ENCODER], nli:MODEL or nli:reader; repeat.",
        show_default="exact and f1",
    ),
]
PoolingOption = Annotated[str, typer.Option(help="mean, max, majority or plurality.")]
VoterOption = Annotated[Path | None, typer.Option("--voter", help="A voter that --save wrote.", show_default=False)]
FitOption = Annotated[bool, typer.Option("--fit", help="First learn the weights from the file's right answers.")]
MetricOption = Annotated[str, typer.Option(help="Metric that --fit maximises: em, f1 or contained.")]
SaveOption = Annotated[
    Path | None, typer.Option("--save", help="Write the fitted voter to this .json file.", show_default=False)
]
SupportOption = Annotated[
    float | None, typer.Option(help="Abstain if the winner's support is below this.", show_default=False)
]


@dataclass(frozen=True)
class Voting:
    """The voter's options.

    Attributes:
        similarities: names.
        pooling, min_support, seed: as the arguments of `Voter`.
        saved: the values of --voter; None without.
        fit, metric, save: as the options.
    """

    similarities: tuple[str, ...]
    pooling: str
    min_support: float | None
    seed: int
    saved: dict[str, Any] | None
    fit: bool
    metric: str
    save: Path | None

    @property
    def needs_reader(self) -> bool:
        """Whether a similarity uses the reader."""
        return READER in self.similarities

    def settings(self) -> dict[str, Any]:
        """Return the settings that votes depend on, as JSON values."""
        return {
            "similarities": list(self.similarities),
            "pooling": self.pooling,
            "min_support": self.min_support,
            "weights": self.saved,
        }

    def voter(self, reader: ReaderProtocol | None = None) -> Voter:
        """Create the voter, unfitted; the reader serves nli:reader."""
        from fastreader.eor import Voter
        from fastreader.eor.similarity import resolve

        given = [resolve(name, reader=reader) for name in self.similarities]
        if self.saved is None:
            return Voter(given, pooling=self.pooling, min_support=self.min_support, seed=self.seed)
        voter = Voter.from_dict(self.saved, similarities=given)
        return voter if self.min_support is None else voter.set_params(min_support=self.min_support)

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


def read_voting(
    similarity: list[str] | None,
    pooling: str,
    voter: Path | None,
    fit: bool,
    metric: str,
    save: Path | None,
    min_support: float | None,
    seed: int,
) -> Voting:
    """Return the voter's options, checked as far as possible without loading a model.

    Raises:
        InputError: if options exclude each other, a name is unknown, a similarity's model cannot exist, the file of
            --voter is not a voter, or --save cannot be written.
    """
    from fastreader.eor import measures
    from fastreader.eor.pooling import POOLINGS
    from fastreader.eor.similarity.loading import check_names
    from fastreader.eor.voter import saved_similarities

    expect(min_support is None or not math.isnan(min_support), "--min-support", "a number", min_support)
    require(fit or save is None, "--save: needs --fit, which makes the voter to save")
    require(fit or metric == "em", "--metric: needs --fit, which maximises it")
    check_choice("--metric", metric, measures.MEASURES)
    check_seed("--seed", seed)
    if save is not None:
        check_writable("--save", save)
    saved = None
    names = tuple(similarity or ("exact", "f1"))
    if voter is not None:
        require(not fit, "--voter: cannot be combined with --fit, which learns a voter")
        require(not similarity and pooling == "mean", "--voter: brings its own similarities and pooling")
        saved = read_object(voter)
        names = saved_similarities(saved)
        pooling = str(saved["parameters"].get("pooling", pooling))
    check_choice("pooling", pooling, POOLINGS)
    voting = Voting(names, pooling, min_support, seed, saved, fit, metric, save)
    if not voting.needs_reader:
        voting.voter().resolved()
    with located("--similarity" if voter is None else "--voter"):
        check_names(names)
    return voting


def check_right(rows: Sequence[Answers | Example]) -> None:
    """Check that every question has the right answers that --fit needs."""
    for row in rows:
        right = row.answers if isinstance(row, Example) else row.right
        require(bool(right), f"--fit: needs right answers, and got none for {row.question[:60]!r}")


def fit_voter(voter: Voter, answers: Sequence[Answers], voting: Voting) -> None:
    """Fit on the right answers, report the fit on standard error, and save."""
    from fastreader.eor import correctness

    metric = voting.metric
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
        say(f"warning: nothing was learned; {_why_nothing(metric, bool(correct.any()))}")
    weights = sorted(zip(names, voter.retriever_weights_.tolist(), strict=True), key=lambda pair: -pair[1])
    say("weights: " + ", ".join(f"{name} {w:.2f}" if w else f"{name} dropped" for name, w in weights))
    if voting.save is not None:
        voter.save(voting.save)


def _why_nothing(metric: str, any_right: bool) -> str:
    if any_right:
        return f"no question has answers that differ by {metric}"
    return (
        f"no answer is right by {metric}. If answers are long, --metric contained counts those that contain a right "
        "one, and fastreader eor --texts short asks for short ones"
    )
