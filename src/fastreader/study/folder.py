"""RunFolder: where a study's rows, its cache and a copy of its configuration lie."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastreader.data import Example, Passage
from fastreader.data.fingerprints import reader_identity
from fastreader.data.result_log import iter_results
from fastreader.errors import InputError
from fastreader.study.calibrations import CALIBRATIONS, calibrations, check_calibrations
from fastreader.study.config import Study
from fastreader.study.contents import FILES, check_contents, contents

RESULTS, QUESTIONS, ATTENTION, STUDY, CACHE, COSTS, VOTER, READERS = (
    "results.jsonl",
    "questions.jsonl",
    "attention.jsonl",
    "study.json",
    "cache.sqlite",
    "costs.json",
    "voter.json",
    "readers.json",
)


class RunFolder:
    """A run's files.

    - study.json: the study, paths absolute; files.json: digests of what is in the files it names; calibrations.json:
      of the calibrations that MoI's methods find by themselves;
    - questions.jsonl: its questions with their passages, so that a report needs nothing else;
    - results.jsonl: a row a question, method, reader and seed;
    - attention.jsonl, voter.json: what some methods leave beside their rows;
    - cache.sqlite: generations and scores by content;
    - readers.json: of each reader what a run may not change;
    - costs.json: tokens and seconds of the calls, over all starts of the run.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._contents: dict[str, str] = {}  # of the study's files, as `begin` found them

    def file(self, name: str) -> Path:
        """A file of it."""
        return self.path / name

    def begin(self, study: Study, resume: bool) -> None:
        """Make the folder with the study in it, or check that it is of this study.

        Methods, questions (limit) and the attention that is looked at may be added between runs. The primary contrast
        is stated before the first answer: it cannot be changed or added later, nor the measure and the baseline under
        it. Everything else must be as it was, what is in the files it names included.

        Raises:
            InputError: it holds a run and `resume` is off, or a run of another study (what differs is named); or it
                is no folder or holds something else.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: expected a folder for the run, got a file")
        self._contents = contents(study)
        if self.file(STUDY).exists():
            if not resume:
                raise InputError(f"{self.path}: holds a run already; continue it with resume, or name another folder")
            self._check(study)
            return
        if self.path.exists() and any(file.name != FILES for file in self.path.iterdir()):
            raise InputError(f"{self.path}: holds files, but no run of a study; name a new folder")
        self.path.mkdir(parents=True, exist_ok=True)
        self._keep_study(study)

    def keep(self, study: Study, examples: Sequence[Example]) -> None:
        """Keep study and questions as they are now: after `begin`, when all rows there are known to be theirs."""
        self._keep_study(study)
        self._keep_questions(examples)

    def _keep_study(self, study: Study) -> None:
        self.write_json(FILES, self._contents)  # before the study, which makes the folder a run
        self.write_json(STUDY, study.to_dict())

    def study(self) -> Study:
        """The study it is of; the files it names need not be there any more.

        Raises:
            InputError: it is no run folder.
        """
        if not self.file(STUDY).is_file():
            raise InputError(f"{self.path}: not the folder of a run (it has no {STUDY})")
        try:
            values = json.loads(self.file(STUDY).read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{self.file(STUDY)}: broken JSON ({error})") from error
        return Study.stored(values, str(self.file(STUDY)))

    def check_reader(self, study: Study, name: str, about: Mapping[str, str]) -> None:
        """Keep what `name` is now and its calibrations, or check that they are as when it gave its first answer.

        Raises:
            InputError: it is another revision, or loaded in another type, both are named; or a calibration changed.
        """
        now, known = reader_identity(about), self.read_json(READERS) or {}
        before = known.setdefault(name, now)
        if before != now:
            raise InputError(
                f"{self.path}: holds a run of another study: the reader {name} was {_show(before)}, is now {_show(now)}"
            )
        taken, kept = calibrations(study, about), self.read_json(CALIBRATIONS) or {}
        if taken is not None:
            check_calibrations(self.path, study, name, kept.get(name), taken)
            self.write_json(CALIBRATIONS, kept | {name: taken})
        self.write_json(READERS, known)

    def _check(self, study: Study) -> None:
        theirs = self.study()
        before, now = theirs.identity(), study.identity()
        if differing := [key for key in now if before.get(key) != now[key]]:
            shown = "; ".join(f"{key} was {_show(before.get(key))}, is now {_show(now[key])}" for key in differing)
            raise InputError(f"{self.path}: holds a run of another study: {shown}")
        stated, states = _stated(theirs), _stated(study)
        if stated != states:
            raise InputError(
                f"{self.path}: the primary contrast is stated before the first answer: it was {stated}, is now {states}"
            )
        check_contents(self.path, theirs, self.read_json(FILES), study, self._contents)
        mine = {method.label: method for method in study.methods}
        answered = {row["method"] for row in self.rows()}
        for method in theirs.methods:
            if method.label not in answered:
                continue  # added to a run that was refused before it began
            if method.label not in mine:
                raise InputError(
                    f"{self.path}: holds a run of another study: it has results of the method {method.label!r}, which "
                    "this one does not name"
                )
            if mine[method.label].digest() != method.digest():
                raise InputError(
                    f"{self.path}: holds a run of another study: the method {method.label!r} was "
                    f"{_show(method.model_dump())}, is now {_show(mine[method.label].model_dump())}"
                )

    def _keep_questions(self, examples: Sequence[Example]) -> None:
        """Write the questions, all of them or nothing."""
        scratch = self.file(f".{QUESTIONS}.{os.getpid()}.tmp")
        with scratch.open("w", encoding="utf-8") as lines:
            for example in examples:
                row = {
                    "id": example.id,
                    "question": example.question,
                    "answers": example.answers,
                    "passages": [{k: v for k, v in asdict(p).items() if k != "metadata"} for p in example.passages],
                }
                lines.write(json.dumps(row, ensure_ascii=False) + "\n")
        scratch.replace(self.file(QUESTIONS))

    def questions(self) -> list[Example]:
        """The questions."""
        return [
            Example(row["question"], [Passage(**p) for p in row["passages"]], row["answers"], id=row["id"])
            for row in _lines(self.file(QUESTIONS))
        ]

    def rows(self) -> list[dict[str, Any]]:
        """The results; none where nothing was run."""
        file = self.file(RESULTS)
        return list(iter_results(file)) if file.is_file() else []

    def attention(self) -> list[dict[str, Any]]:
        """Rows of the attention file; none where nobody asked."""
        file = self.file(ATTENTION)
        return list(iter_results(file)) if file.is_file() else []

    def read_json(self, name: str) -> Any:
        """A JSON file of it; None where it is not there."""
        file = self.file(name)
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file, all of it or nothing."""
        scratch = self.file(f".{name}.{os.getpid()}.tmp")
        scratch.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
        scratch.replace(self.file(name))


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    if not file.is_file():
        raise InputError(f"{file}: no such file; the run has not begun")
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _stated(study: Study) -> str:
    """The primary contrast in words."""
    if study.primary is None:
        return "none"
    return f"{study.primary} against {study.reference} by {study.measure}"


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 200 else text[:197] + "..."
