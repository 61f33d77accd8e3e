"""Skip questions, check outputs and resume, for several commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from fastreader.cli.options import OutputArguments, RankOutputArguments
from fastreader.cli.screen import say
from fastreader.core.checks import expect, require
from fastreader.data import Example
from fastreader.data.arguments import keyed
from fastreader.data.fingerprints import digest
from fastreader.data.result_log import ResultLog
from fastreader.data.types import place_of
from fastreader.errors import FastreaderError

UNCALIBRATED = (
    "no calibration for this reader, template and number of passages: utilities are query likelihoods, and passages "
    "keep the retriever's order; fastreader calibrate measures one from 20 questions or more"
)


def named_after(example: Example, error: Exception) -> str:
    """Return an error's message with the place of its question."""
    place = place_of(example)
    return f"{place}: {error}" if place else str(error)


def named_files(sources: list[str]) -> dict[str, Path]:
    """Return the files of --source by their names.

    Raises:
        InputError: if one is not NAME=FILE, has a name that came before, or does not exist.
    """
    files: dict[str, Path] = {}
    for text in sources:
        name, equals, path = text.partition("=")
        expect(bool(equals and name and path), "--source", "NAME=FILE", text)
        require(name not in files, f"--source: {name} came twice")
        require(Path(path).exists(), f"--source: {path}: no such file")
        files[name] = Path(path)
    return files


class Skipped:
    """Questions that --skip-errors leaves out: each is printed at once, and all are counted at the end."""

    def __init__(self, wanted: bool) -> None:
        self.wanted, self.count = wanted, 0

    def __call__(self, message: str) -> None:
        """Print why a question is skipped."""
        self.count += 1
        say(f"skipped: {message}")

    @property
    def on_error(self) -> Callable[..., None] | None:
        """A callback that skips the question of its last argument, an error, or None if errors are raised."""
        return (lambda *failed: self(str(failed[-1]))) if self.wanted else None

    def fail(self, example: Example, error: FastreaderError) -> None:
        """Skip a question, or raise its error with its id."""
        named = named_after(example, error)
        if not self.wanted:
            raise type(error)(named) from error
        self(named)

    def finish(self) -> None:
        """Exit with status 3 if anything was skipped."""
        if self.count:
            say(f"{self.count} skipped")
            raise typer.Exit(3)


def check_output(into: OutputArguments | RankOutputArguments, file: Path | None, *, cost: bool = False) -> None:
    """Raise InputError if --output cannot be resumed or written, or is the file of the questions."""
    output = into.output
    require(output is not None or not into.resume, "--resume: needs --output, the file to continue")
    if output is None:
        return
    if not cost:
        check_writable("--output", output, appended=True)
    plain = "results are plain JSON lines, so that a killed run can be resumed"
    require(output.suffix != ".gz", f"--output: {output} would be gzipped; {plain}")
    require(into.format is None, "--format: applies to standard output, which --output replaces")
    same = file is not None and file.exists() and output.exists() and output.samefile(file)
    require(not same, f"--output: {output} is the file of the questions")


def check_writable(option: str, path: Path, *, appended: bool = False) -> None:
    """Raise InputError if a file cannot be replaced, or continued if `appended`, before the work that it would hold."""
    require(not path.is_dir(), f"{option}: {path} is a folder")
    require(path.parent.is_dir(), f"{option}: no folder {path.parent}")
    written = path if appended and path.exists() else path.parent
    require(os.access(written, os.W_OK), f"{option}: {written} cannot be written to")


class Resumed:
    """A log of results, and the questions that it lacks.

    Args:
        log: what is resumed; None if results are not kept, so that every question is left.
    """

    def __init__(self, log: ResultLog | None) -> None:
        self.log = log
        self._digests: dict[str, str] = {}

    def left(
        self,
        examples: Iterator[Example],
        candidates: list[str] | None = None,
        *,
        question_only: bool = True,
        scores: bool = False,
        answers: bool = False,
    ) -> Iterator[Example]:
        """Yield the examples that the log lacks, each with a unique id.

        A repeated id gets a number. A digest tells whether an example has changed. It covers the texts and, if
        results depend on them, the candidates (without `question_only`), the retriever's `scores` and the right
        `answers`.
        """
        for example in keyed(examples):
            key = example.id
            assert key is not None
            scored = [] if question_only else example.candidates if candidates is None else candidates
            more: list[list[Any]] = [[p.score for p in example.passages]] if scores else []
            more += [example.answers] if answers else []
            made_from = digest([example.question, [[p.title, p.text] for p in example.passages], scored, *more])
            if self.log is None or not self.log.holds(key, made_from):
                if self.log is not None:
                    self._digests[key] = made_from
                yield example

    def append(self, key: str | None, values: dict[str, Any]) -> bool:
        """Append the result of a question that was left, and return whether there is a log for it."""
        if self.log is None:
            return False
        assert key is not None
        self.log.append(key, values, example=self._digests.pop(key))
        return True
