"""run_study: questions in groups, all methods of a group together, a row for each as it ends."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from fastreader.core.progress import track
from fastreader.core.protocol import ReaderProtocol
from fastreader.data import Example, load_examples
from fastreader.data.cache import Cache
from fastreader.data.fingerprints import digest
from fastreader.data.keyed import keyed
from fastreader.data.result_log import ResultLog
from fastreader.errors import FastreaderError, InputError
from fastreader.reader.programs.readers import Readers
from fastreader.reader.programs.requests import Program
from fastreader.reader.programs.scheduler import run as run_together
from fastreader.statistics.answers import contained, exact_match, f1
from fastreader.study.attention import keep_attention, lacks_attention
from fastreader.study.cached_reader import CachedReader
from fastreader.study.config import MethodConfig, Study
from fastreader.study.folder import CACHE, COSTS, RESULTS, RunFolder
from fastreader.study.metering import Spent, metered
from fastreader.study.method import Answered, Asked, NotApplicable, OverLong, StudyMethod
from fastreader.study.registry import check, make

Load = Callable[[str], ReaderProtocol]


@dataclass(frozen=True)
class Finished:
    """How a run ended.

    Attributes:
        folder: of the run.
        rows: in it now.
        fresh: written by this call.
        failed: rows whose method raised an error, which they hold.
        left_out: rows of questions that lack what their method needs.
        over_long: of those, rows whose prompt was over the reader's context.
    """

    folder: Path
    rows: int
    fresh: int
    failed: int
    left_out: int
    over_long: int


@dataclass(frozen=True)
class _Cell:
    """One method under one seed."""

    config: MethodConfig
    method: StudyMethod
    seed: int


def run_study(
    study: Study,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    progress: bool | None = None,
    load: Load | None = None,
) -> Finished:
    """Run a study, or what is left of it.

    Every question, method, reader and seed becomes a row of results.jsonl as soon as it is answered. A run that is
    killed loses the calls that were running; what the reader gave before is in the cache. Rows that failed are made
    anew when the run goes on.

    Args:
        study: what to run.
        folder: of the run; made where there is none.
        resume: continue the run in the folder.
        progress: a bar on standard error; None: on a terminal.
        load: a reader by name, in place of `Reader.load`.

    Raises:
        InputError: as `RunFolder.begin`; no questions; a row in the folder that was made from other texts, or is of a
            question that is not asked any more. The folder is as it was then. Also a reader that is not what it was:
            known when it is loaded, with what failed before taken out.
    """
    check(study)
    examples = questions_of(study)
    run = RunFolder(folder)
    run.begin(study, resume)
    cells = [
        _Cell(config, method, seed)
        for config in study.methods
        for method in [make(config, study)]
        for seed in (study.seeds if method.draws else study.seeds[:1])
    ]
    total = len(examples) * len(cells) * len(study.readers)
    with ExitStack() as stack:
        settings = {"study": digest(study.identity())}
        log = stack.enter_context(ResultLog(run.file(RESULTS), settings=settings, resume=True))
        cache = stack.enter_context(Cache(run.file(CACHE)))
        advance = stack.enter_context(track("studying", total, "answers", progress))
        failed = {row["id"] for row in run.rows() if row["error"] is not None}
        before = len(log) - len(failed)
        writers = {name: _Rows(log, name, advance, failed) for name in study.readers}
        todos = {
            name: [(group, [c for c in cells if writer.lacks(c, group)]) for group in _groups(examples, study.group)]
            for name, writer in writers.items()
        }
        _check_asked(run, log, examples)
        run.keep(study, examples)  # not before: a row of other texts is refused above, and the folder left as it was
        log.drop(failed)
        failed.clear()
        for name, writer in writers.items():
            opened = _Opened(name, load or _loader(study), cache, study, run)
            for group, left in todos[name]:
                writer.skip(len(group) * (len(cells) - len(left)))
                if left:
                    _run_group(opened.reader, group, left, examples, writer)
                    _keep_costs(run, name, opened.reader)
            if lacks_attention(study, run, examples, name):
                keep_attention(study, run, opened.reader, examples, name)
        fresh = len(log) - before
    rows = run.rows()
    if study.eor.fit:
        from fastreader.study.fitting import fit_voters

        fit_voters(study, run, rows, examples)
    return Finished(
        run.path,
        len(rows),
        fresh,
        sum(row["error"] is not None for row in rows),
        sum(row["left_out"] is not None for row in rows),
        sum(row["over_long"] is not None for row in rows),
    )


def _check_asked(run: RunFolder, log: ResultLog, examples: Sequence[Example]) -> None:
    """Refuse a study that leaves out questions which were answered: figures would mix the two."""
    asked = {example.id for example in examples}
    for key in log.done:
        if (question := json.loads(key)[0]) not in asked:
            raise InputError(
                f"{run.path}: holds a run of another study: it has results of the question {question!r}, which this "
                "one does not ask (a run may get more questions, not fewer)"
            )


def questions_of(study: Study) -> list[Example]:
    """The study's questions, each with an id of its own and the first N passages.

    Raises:
        InputError: no such file, or no questions in it.
    """
    if not Path(study.data).is_file():
        raise InputError(f"study: data: {study.data}: no such file")
    examples = keyed(load_examples(study.data, limit=study.limit))
    return [replace(e, passages=list(e.passages[: study.passages])) for e in examples]


class _Opened:
    """A reader that is loaded when it is needed first."""

    def __init__(self, name: str, load: Load, cache: Cache, study: Study, run: RunFolder) -> None:
        self._name, self._load, self._cache, self._study, self._run = name, load, cache, study, run

    @functools.cached_property
    def reader(self) -> CachedReader:
        """It."""
        loaded = self._load(self._name)
        self._run.check_reader(self._study, self._name, loaded.describe())
        return CachedReader(loaded, self._cache, self._study.max_batch_tokens)


class _Rows:
    """Writes rows, and knows which there are."""

    def __init__(self, log: ResultLog, reader: str, advance: Callable[[int], None], failed: Set[str]) -> None:
        self._log, self._reader, self._advance, self._failed = log, reader, advance, failed

    def lacks(self, cell: _Cell, group: Sequence[Example]) -> bool:
        """Whether a row of the group is to be made; every one there is checked."""
        held = [self.holds(cell, example) for example in group]
        return not all(held)

    def holds(self, cell: _Cell, example: Example) -> bool:
        """Whether the row is there, and not one that failed."""
        key = self._key(cell, example)
        return key not in self._failed and self._log.holds(key, _made_from(cell, example))

    def write(self, cell: _Cell, example: Example, outcome: Answered | FastreaderError, spent: Spent) -> None:
        """Write the row of one answer, or of why there is none."""
        text = outcome.text if isinstance(outcome, Answered) else None
        right = example.answers
        row = {
            "question_id": example.id,
            "method": cell.config.label,
            "reader": self._reader,
            "seed": cell.seed,
            "answer": text,
            "em": exact_match(text, right) if text is not None and right else None,
            "f1": f1(text, right) if text is not None and right else None,
            "contained": contained(text, right) if text is not None and right else None,
            "left_out": str(outcome) if isinstance(outcome, NotApplicable) else None,
            "over_long": outcome.tokens if isinstance(outcome, OverLong) else None,
            "error": None if isinstance(outcome, (Answered, NotApplicable)) else str(outcome),
            "tokens": {"given": spent.given, "computed": spent.computed, "new": spent.new, "calls": spent.calls},
            "seconds": round(spent.seconds, 4),
            "trace": outcome.trace if isinstance(outcome, Answered) else {},
        }
        self._log.append(self._key(cell, example), row, example=_made_from(cell, example))
        self._advance(1)

    def skip(self, count: int) -> None:
        """Count rows that were there."""
        self._advance(count)

    def _key(self, cell: _Cell, example: Example) -> str:
        return json.dumps([example.id, cell.config.label, self._reader, cell.seed], ensure_ascii=False)


def _run_group(
    reader: CachedReader, group: list[Example], cells: list[_Cell], everything: list[Example], rows: _Rows
) -> None:
    """One group: every method's program for each question that has no row yet, all of them in step."""
    programs: list[tuple[Program[None], Readers]] = []
    readers = Readers(reader)
    for cell in cells:
        todo = [example for example in group if not rows.holds(cell, example)]
        rows.skip(len(group) - len(todo))
        asked = Asked(reader, todo, cell.seed, everything)
        for example, program in zip(todo, cell.method.programs(asked), strict=True):
            programs.append((metered(program, reader, _writer(rows, cell, example)), readers))
    for outcome in run_together(programs):
        if outcome.error is not None:  # of ours, not the method's: `metered` hands those to the row
            raise outcome.error


def _writer(rows: _Rows, cell: _Cell, example: Example) -> Callable[[Answered | FastreaderError, Spent], None]:
    return lambda outcome, spent: rows.write(cell, example, outcome, spent)


def _groups(examples: Sequence[Example], size: int) -> Iterator[list[Example]]:
    for start in range(0, len(examples), size):
        yield list(examples[start : start + size])


def _loader(study: Study) -> Load:
    def load(name: str) -> ReaderProtocol:
        from fastreader.reader.reader import Reader

        return Reader.load(name, device=study.device, dtype=study.dtype, precision=study.precision)

    return load


def _keep_costs(run: RunFolder, name: str, reader: CachedReader) -> None:
    """Add what was spent since the last call to the run's costs."""
    costs = run.read_json(COSTS) or {}
    spent = reader.total.to_dict()
    mine = costs.setdefault(name, dict.fromkeys(spent, 0))
    costs[name] = {key: mine[key] + spent[key] for key in spent}
    costs[name]["seconds"] = round(costs[name]["seconds"], 4)
    run.write_json(COSTS, costs)
    reader.total.clear()


def _made_from(cell: _Cell, example: Example) -> str:
    passages = [[p.title, p.text, p.score, p.is_gold, p.has_answer] for p in example.passages]
    return digest([example.question, example.answers, passages, cell.config.digest()])
