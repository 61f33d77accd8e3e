"""RunFolder: the folder of a run, with its rows, its cache and a copy of its study."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastreader.core.checked import checked
from fastreader.core.checks import check_json, expect, is_missing, rejecting, require
from fastreader.data import Example, Passage
from fastreader.data.files import is_draft, json_text, read_values, replacing, write_json
from fastreader.data.fingerprints import reader_identity
from fastreader.data.result_log import iter_results
from fastreader.study.config import Study
from fastreader.study.contents import (
    CALIBRATIONS,
    FILES,
    calibrations,
    check_calibrations,
    check_contents,
    contents,
    finds_calibrations,
    require_same_models,
    require_same_study,
)
from fastreader.study.measures.registry import basis_of

RESULTS, QUESTIONS, ATTENTION = "results.jsonl", "questions.jsonl", "attention.jsonl"
MEASURES, CONFLICTS, ATTRIBUTION = "measures.jsonl", "conflicts.jsonl", "attribution.jsonl"
STUDY, COSTS, VOTER, READERS, CACHE = "study.json", "costs.json", "voter.json", "readers.json", "cache.sqlite"


@checked
class RunFolder:
    """The files of a run.

    - study.json: the study, with absolute paths; files.json: digests of the files it names; calibrations.json: digests
      of the calibrations that MoI's methods find;
    - questions.jsonl: the questions with their passages, so that a report needs no other file;
    - results.jsonl: one row per question, method, reader and seed;
    - attention.jsonl, voter.json: further results of some methods;
    - measures.jsonl: further measures of the answers (`Study.measures`);
    - conflicts.jsonl: contradictions among passages (`Study.conflicts`);
    - attribution.jsonl: how much each passage contributes to an answer (`Study.attribution`);
    - cache.sqlite: generations and scores by content;
    - readers.json: the facts about each reader that must not change during a run;
    - costs.json: tokens and seconds of the calls, summed over all starts of the run.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._contents: dict[str, str] = {}  # of the study's files, as `begin` found them

    def file(self, name: str) -> Path:
        """Return the path of one of its files.

        Raises:
            InputError: if `name` is not the name of a file.
        """
        expect(0 < len(name) <= 200 and name.isprintable() and "/" not in name, "name", "the name of a file", name)
        return self.path / name

    def begin(self, study: Study, resume: bool) -> None:
        """Create the folder with the study in it, or check that it belongs to this study.

        Methods, questions (`limit`), measures, tables of models for them, and recorded attention may be added between
        runs. The primary contrast is stated before the first answer, so it cannot be changed or added later, nor can
        its metric and baseline. Everything else must stay the same, including the content of the files and models that
        the study names.

        Raises:
            InputError: if the folder holds a run and `resume` is off, or a run of another study (the message names the
                difference), or is not a folder, or holds other files.
        """
        expect(not self.path.exists() or self.path.is_dir(), str(self.path), "a folder for the run", "a file")
        self._contents = contents(study)
        if self.file(STUDY).exists():
            require(resume, f"{self.path}: holds a run already; resume it, or name another folder")
            self._check(study)
            return
        others = self.path.exists() and any(file.name != FILES and not is_draft(file) for file in self.path.iterdir())
        require(not others, f"{self.path}: holds files, but no run of a study; name a new folder")
        self.path.mkdir(parents=True, exist_ok=True)
        self._keep_study(study)

    def keep(self, study: Study, examples: Sequence[Example]) -> None:
        """Write study and questions, after `begin` and once all rows in the folder are known to belong to them."""
        self._keep_study(study)
        with replacing(self.file(QUESTIONS)) as lines:
            for example in examples:
                row = {
                    "id": example.id,
                    "question": example.question,
                    "answers": example.answers,
                    "passages": [
                        {k: v for k, v in asdict(p).items() if k != "metadata" and not is_missing(v)}
                        for p in example.passages
                    ],
                }
                with rejecting(f"id {example.id}: cannot be written as JSON", ValueError):
                    lines.write(json_text(row) + "\n")

    def _keep_study(self, study: Study) -> None:
        # before the study, which makes the folder a run, and with what measures of before rest on
        self.write_json(FILES, {**(self.read_json(FILES) or {}), **self._contents})
        self.write_json(STUDY, study.to_dict())

    def study(self) -> Study:
        """Return the study of the run, whose files need not exist any more.

        Raises:
            InputError: if the folder is not that of a run.
        """
        file = self.file(STUDY)
        require(file.is_file(), f"{self.path}: not the folder of a run (it has no {STUDY})")
        return Study.stored(read_values(file), str(file))

    def check_reader(self, study: Study, name: str, about: Mapping[str, str]) -> None:
        """Save a reader's revision, type of weights and calibrations, or check that they are as at its first answer.

        Calibrations are of the readers that the study compares, and of those that rank for its methods.
        """
        now, known = reader_identity(about), self.read_json(READERS) or {}
        before = known.setdefault(name, now)
        difference = f"the reader {name} was {_show(before)}, is now {_show(now)}"
        require_same_study(before == now, self.path, difference)
        finds = finds_calibrations(study, name)
        found, kept = calibrations(study, about) if finds else None, self.read_json(CALIBRATIONS) or {}
        if found is not None:
            check_calibrations(self.path, study, name, kept.get(name, found), found)
            self.write_json(CALIBRATIONS, kept | {name: found})
        self.write_json(READERS, known)

    def _check(self, study: Study) -> None:
        theirs = self.study()
        require_same_models(self.path, theirs, study)
        before, now = ({**each.identity(), "models": None} for each in (theirs, study))
        differing = [key for key in now if before.get(key) != now[key]]
        changes = (f"{key} was {_show(before.get(key))}, is now {_show(now[key])}" for key in differing)
        require_same_study(not differing, self.path, "; ".join(changes))
        stated, states = _stated(theirs), _stated(study)
        was = f"the primary contrast is stated before the first answer: it was {stated}, is now {states}"
        require(stated == states, f"{self.path}: {was}")
        check_contents(self.path, theirs, self.read_json(FILES), study, self._contents)
        mine = {method.label: method for method in study.methods}
        answered = {row["method"] for row in self.rows()}
        for method in theirs.methods:
            label, own = method.label, mine.get(method.label)
            if label not in answered:
                continue  # added to a run that stopped before its first answer
            if own is None:
                difference = f"it has results of the method {label!r}, which this study does not have"
            else:
                difference = f"the method {label!r} was {_show(method.model_dump())}, is now {_show(own.model_dump())}"
            require_same_study(own is not None and own.digest() == method.digest(), self.path, difference)

    def questions(self) -> list[Example]:
        """Return the questions.

        Raises:
            InputError: if the run has not begun.
        """
        file = self.file(QUESTIONS)
        require(file.is_file(), f"{file}: no such file; the run has not begun")
        with file.open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        return [
            Example(row["question"], [Passage(**p) for p in row["passages"]], row["answers"], id=row["id"])
            for row in rows
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Return the results, an empty list before the first answer."""
        return self._results(RESULTS)

    def attention(self) -> list[dict[str, Any]]:
        """Return the rows of attention, an empty list if none was recorded."""
        return self._results(ATTENTION)

    def measures(self) -> dict[str, dict[str, float | None]]:
        """Return the further measures of each answer, by the id of its row and by name.

        Values with other prompts than the study's, or against another baseline, do not count.
        """
        found: dict[str, dict[str, float | None]] = {}
        if not (entries := self._results(MEASURES)):
            return found
        study, rows = self.study(), {row["id"]: row for row in self.rows()}
        baseline = Baseline(study, rows.values())
        for entry in entries:
            row = rows.get(entry["row"])
            compared = None if row is None else baseline.of(row)
            if entry.get("basis") == basis_of(entry["measure"], study.judges, compared):
                found.setdefault(entry["row"], {})[entry["measure"]] = entry["value"]
        return found

    def conflicts(self) -> list[dict[str, Any]]:
        """Return the latest comparison of the passages of each question, by each reader."""
        return list({(row["question_id"], row["reader"]): row for row in self._results(CONFLICTS)}.values())

    def attribution(self) -> list[dict[str, Any]]:
        """Return the attribution of each answer to its question's passages, by each reader."""
        return self._results(ATTRIBUTION)

    def _results(self, name: str) -> list[dict[str, Any]]:
        file = self.file(name)
        return list(iter_results(file)) if file.is_file() else []

    def read_json(self, name: str) -> Any:
        """Return the value in a JSON file of the folder, or None if there is no such file."""
        file = self.file(name)
        return read_values(file) if file.is_file() else None

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file of the folder, whole or not at all."""
        check_json("value", value)
        write_json(self.file(name), value)


class Baseline:
    """The answers of a study's baseline, which other answers to the same questions are compared with.

    Args:
        study, rows: of the run.
    """

    def __init__(self, study: Study, rows: Iterable[Mapping[str, Any]]) -> None:
        self._answers = {
            (row["question_id"], row["reader"], row["seed"]): row["answer"]
            for row in rows
            if row["method"] == study.reference
        }
        self._first = study.seeds[0]

    def of(self, row: Mapping[str, Any]) -> str | None:
        """Return the answer to a row's question by its reader, under its seed if the baseline draws, or None."""
        place = row["question_id"], row["reader"]
        found: str | None = self._answers.get((*place, row["seed"]), self._answers.get((*place, self._first)))
        return found


def _stated(study: Study) -> str:
    """Return the primary contrast in words."""
    if study.primary is None:
        return "none"
    return f"{study.primary} against {study.reference} by {study.metric}"


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 200 else text[:197] + "..."
