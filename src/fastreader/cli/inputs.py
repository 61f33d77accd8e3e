"""Read questions, check outputs and resume, for several commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from fastreader.cli.screen import say
from fastreader.core.checks import check_text, require
from fastreader.data import Example, Passage, iter_examples
from fastreader.data.fingerprints import digest, model_digest
from fastreader.data.keyed import keyed
from fastreader.data.result_log import ResultLog


class Skipped:
    """What --skip-errors leaves out: printed at once, counted at the end."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, message: str) -> None:
        """Print why a question is skipped."""
        self.count += 1
        say(f"skipped: {message}")

    def finish(self) -> None:
        """Exit with status 3 if anything was skipped."""
        if self.count:
            say(f"{self.count} skipped")
            raise typer.Exit(3)


def check_output(
    output: Path | None, file: Path | None, resume: bool, format: StrEnum | None, *, cost: bool = False
) -> None:
    """Raise InputError if --output cannot be resumed or written, or is the file of the questions."""
    require(output is not None or not resume, "--resume: needs --output, the file to continue")
    if output is None:
        return
    if not cost:
        check_writable("--output", output, appended=True)
    plain = "results are plain JSON lines, so that a killed run can be resumed"
    require(output.suffix != ".gz", f"--output: {output} would be gzipped; {plain}")
    require(format is None, "--format: applies to standard output, which --output replaces")
    same = file is not None and file.exists() and output.exists() and output.samefile(file)
    require(not same, f"--output: {output} is the file of the questions")


def check_writable(option: str, path: Path, *, appended: bool = False) -> None:
    """Raise InputError if a file cannot be replaced, or continued if `appended`, before the work that it would hold."""
    require(not path.is_dir(), f"{option}: {path} is a folder")
    require(path.parent.is_dir(), f"{option}: no folder {path.parent}")
    written = path if appended and path.exists() else path.parent
    require(os.access(written, os.W_OK), f"{option}: {written} cannot be written to")


def examples(
    file: Path | None,
    question: str | None,
    passages: list[str] | None,
    candidates: list[str] | None,
    limit: int | None,
    skip: Any,
) -> Iterator[Example]:
    """Return questions from a file (- is standard input), or the one of --question and --passage.

    Raises:
        InputError: if both or neither are given, the file does not exist, or a text is not valid Unicode.
    """
    require((file is None) != (question is None), "expected a file or --question, one of the two")
    for text in candidates or []:
        check_text("--candidate", text, empty=True)
    if file is None:
        assert question is not None
        check_text("--question", question, empty=True)
        for text in passages or []:
            check_text("--passage", text, empty=True)
        return iter([Example(question, [Passage(p) for p in passages or []], candidates=candidates or [])])
    file = Path("/dev/stdin") if file == Path("-") else file
    require(not passages, "--passage: goes with --question; a file brings its own passages")
    require(file.exists(), f"{file}: no such file")
    return iter_examples(file, limit=limit, on_error=None if skip is None else lambda error: skip(str(error)))


def remaining(
    examples: Iterator[Example],
    candidates: list[str] | None,
    question_only: bool,
    log: ResultLog | None,
    digests: dict[str, str],
    *,
    scores: bool = False,
    answers: bool = False,
) -> Iterator[Example]:
    """Yield the examples that the log lacks, each with an id; a repeated id gets a number so that keys are unique.

    Adds a digest of each one to `digests`, by its key. The digest covers its texts and, if results depend on them, the
    retriever's `scores` and the right `answers`.
    """
    for example in keyed(examples):
        key = example.id
        assert key is not None
        scored = [] if question_only else example.candidates if candidates is None else candidates
        more: list[list[Any]] = [[p.score for p in example.passages]] if scores else []
        more += [example.answers] if answers else []
        made_from = digest([example.question, [[p.title, p.text] for p in example.passages], scored, *more])
        if log is None or not log.holds(key, made_from):
            if log is not None:
                digests[key] = made_from
            yield example


def model_settings(model: str, dtype: str, precision: str, adapter: str | None = None) -> dict[str, str]:
    """Return the settings that identify a model and its adapter, without loading them.

    A path is resolved, and a digest of its files or the commit of a hub id distinguishes versions.
    """
    from fastreader.models.loading.load import adapter_commit_of, commit_of

    name, revision = _versioned(model, commit_of)
    named = {"model": name, "dtype": dtype, "precision": precision} | ({"revision": revision} if revision else {})
    if adapter is None:
        return named
    name, revision = _versioned(adapter, adapter_commit_of)
    return named | {"adapter": name} | ({"adapter_revision": revision} if revision else {})


def _versioned(name: str, commit_of: Callable[[str], str]) -> tuple[str, str]:
    """Return the name or the resolved path of a model or an adapter, and its version; empty if it has none."""
    path = Path(name).expanduser()
    if path.exists():
        return str(path.resolve()), model_digest(path)
    return name, commit_of(name)


def use_cache(folder: Path | None) -> None:
    """Use `folder` as the folder of pulled models from now on; None changes nothing."""
    if folder is not None:
        os.environ["FASTREADER_CACHE"] = str(folder)
