"""run_study: run all methods on groups of questions, and write a row for each answer as it comes."""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fastreader.core.checked import checked, checked_methods
from fastreader.core.progress import track
from fastreader.data import Example
from fastreader.data.answer_cache import Cache
from fastreader.data.answers import unread_answers
from fastreader.data.fingerprints import digest
from fastreader.data.result_log import ResultLog
from fastreader.errors import FastreaderError
from fastreader.study.cached_reader import Meter
from fastreader.study.cells import Cell, CellGroup, Elsewhere, Row, cells_of, questions_of, run_group
from fastreader.study.config import Study
from fastreader.study.contents import require_same_study
from fastreader.study.dry_run import dry_models, failing
from fastreader.study.extras import fit_voters, write_attention, write_attribution, write_conflicts, write_measures
from fastreader.study.folder import CACHE, COSTS, RESULTS, RunFolder
from fastreader.study.measures.case import Load
from fastreader.study.models import Models, loader, require_models
from fastreader.study.registry import check


@checked_methods
@dataclass(frozen=True)
class Finished:
    """The counts of a finished run.

    Attributes:
        folder: of the run.
        rows: number of rows in it.
        fresh: number of rows that this call wrote.
        failed: number of rows that hold an error instead of an answer.
        left_out: number of rows of questions that lack something their method needs.
        over_long: number of these whose prompt exceeds the reader's context.
    """

    folder: Path
    rows: int
    fresh: int
    failed: int
    left_out: int
    over_long: int


@checked
def run_study(
    study: Study,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    progress: bool | None = None,
    load: Load | None = None,
    elsewhere: Elsewhere | None = None,
    questions: Iterable[Any] | None = None,
) -> Finished:
    """Run a study, or the rest of it.

    Every question, method, reader and seed becomes a row of results.jsonl as soon as it is answered. A run that is
    killed loses only the calls in progress; earlier replies are in the cache. A resumed run repeats rows that failed.

    A reader that a method names is loaded once, when the method first needs it, and stays loaded to the end.

    Args:
        study: the study.
        folder: of the run; it is created if it does not exist.
        resume: continue the run in the folder.
        progress: show a bar on standard error; None shows it on a terminal.
        load: returns a reader by name, instead of `Reader.load`.
        elsewhere: runs groups of questions in other processes, as `fastreader.integrations.ray.run_study` does. Their
            rows come a group at a time, and their replies do not reach the cache. None runs them in this process.
        questions: rows or Examples in any format that `load_examples` reads, such as a `datasets.Dataset`. They
            are used instead of the file that `study.data` names, which is then only a name.

    Raises:
        InputError: if `RunFolder.begin` rejects the folder; if there are no questions; or if a row in the folder was
            made from other texts, or belongs to a question that the study no longer has. The folder is then left
            unchanged. Also if a reader has changed, which shows once it is loaded and failed rows are removed.
        FastreaderError: if the reader that a method names cannot be loaded, as `Reader.load`. All that does not take
            its weights is checked before the run begins, unless `load` is given.
    """
    check(study)
    examples = questions_of(study, questions)
    if not any(example.answers for example in examples):
        unread = unread_answers(examples)
        warnings.warn("no question has right answers" + (f"; {unread}" if unread else ""), stacklevel=3)
    cells = cells_of(study)
    if load is None:
        require_models(study, cells)
    run = RunFolder(folder)
    run.begin(study, resume)
    further = {name for cell in cells for name in cell.method.named_readers}
    total = len(examples) * len(cells) * len(study.readers)
    with ExitStack() as stack:
        settings = {"study": digest({**study.identity(), "models": {}})}  # more models may be named later
        log = stack.enter_context(ResultLog(run.file(RESULTS), settings=settings, resume=True))
        cache = stack.enter_context(Cache(run.file(CACHE)))
        advance = stack.enter_context(track("studying", total, "answers", progress))

        def write(row: Row) -> None:
            key, made_from, values = row
            log.append(key, values, example=made_from)
            advance(1)

        failed = {row["id"] for row in run.rows() if row["error"] is not None}
        before = len(log) - len(failed)
        groups = [examples[i : i + study.batch_size] for i in range(0, len(examples), study.batch_size)]
        todos = {
            name: [(group, _missing(log, failed, name, cells, group)) for group in groups] for name in study.readers
        }
        _check_questions(run, log, examples)
        run.keep(study, examples)  # only now: the checks above leave the folder unchanged if a row has other texts
        log.drop(failed)
        models = Models(
            load or loader(study), cache, study.max_batch_tokens, check=functools.partial(run.check_reader, study)
        )
        for name, todo in todos.items():
            own = functools.partial(models.open, name)
            away = []
            for group, missing in todo:
                advance(len(group) * len(cells) - len(missing))
                if missing and elsewhere is not None:
                    away.append(CellGroup([str(example.id) for example in group], missing))
                elif missing:
                    if load is None and name not in models.opened:
                        _warn_of_failing(study, name, examples)
                    run_group(own(), name, group, cells, examples, models.open, missing=set(missing), write=write)
                    _add_costs(run, {opened: reader.take() for opened, reader in models.opened.items()})
            if away and elsewhere is not None:
                for done in elsewhere(name, study, examples, away):
                    for opened, (about, _) in done.readers.items():
                        run.check_reader(study, opened, about)
                    for row in done.rows:
                        write(row)
                    _add_costs(run, {opened: cost for opened, (_, cost) in done.readers.items()})
            write_attention(study, run, examples, name, own)
            compared = write_conflicts(study, run, examples, name, own, progress)
            if write_attribution(study, run, examples, name, own, progress) or compared:
                _add_costs(run, {name: own().take()})
            if name not in further:
                models.release(name)
        fresh = len(log) - before
    write_measures(study, run, examples, load or loader(study))
    rows = run.rows()
    if study.eor.fit:
        fit_voters(study, run, rows, examples)
    failures, left_out, over_long = (
        sum(row[key] is not None for row in rows) for key in ("error", "left_out", "over_long")
    )
    return Finished(run.path, len(rows), fresh, failures, left_out, over_long)


def _warn_of_failing(study: Study, name: str, examples: list[Example]) -> None:
    """Warn of methods that answer no question, before the reader's weights are read."""
    models = dry_models(study)
    try:
        models.reader(name)
    except FastreaderError:  # loading the weights, which comes next, meets it again
        return
    cells = cells_of(study)  # not the run's own cells: some methods keep what they have read or drawn
    for cost in failing(models, name, examples, cells, batch_size=study.batch_size):
        warnings.warn(cost.warning, stacklevel=4)


def _missing(log: ResultLog, failed: Set[str], name: str, cells: Sequence[Cell], group: Sequence[Example]) -> list[str]:
    """Return the keys of a reader's rows that do not exist or failed, and check the rows that exist."""
    rows = ((cell.key(example, name), cell, example) for cell in cells for example in group)
    return [key for key, cell, example in rows if key in failed or not log.holds(key, cell.digest(example))]


def _check_questions(run: RunFolder, log: ResultLog, examples: Sequence[Example]) -> None:
    """Check that the study still has all questions with results: figures would mix different sets."""
    known = {example.id for example in examples}
    for key in log.done:
        question = json.loads(key)[0]
        lost = f"the question {question!r}, which this study does not have (questions may be added, not removed)"
        require_same_study(question in known, run.path, f"it has results of {lost}")


def _add_costs(run: RunFolder, meters: Mapping[str, Meter]) -> None:
    """Add the costs of readers' calls to those in the folder."""
    costs = run.read_json(COSTS) or {}
    for name, meter in meters.items():
        new = asdict(meter)
        before = costs.setdefault(name, dict.fromkeys(new, 0))
        costs[name] = {key: before[key] + new[key] for key in new}
        costs[name]["seconds"] = round(costs[name]["seconds"], 4)
    run.write_json(COSTS, costs)
