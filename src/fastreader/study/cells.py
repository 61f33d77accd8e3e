"""A study's questions, its cells, each one method under one seed, and the rows and costs of groups of questions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastreader.core.checks import require
from fastreader.data import Example, load_examples
from fastreader.data.arguments import keyed
from fastreader.data.named import is_named
from fastreader.data.read import table_examples
from fastreader.errors import FastreaderError
from fastreader.reader.programs.readers import Readers
from fastreader.reader.programs.requests import Program, StageCost, request_cost
from fastreader.reader.programs.scheduler import run as run_together
from fastreader.statistics.measures.answers import contained, exact_match, f1
from fastreader.study.cached_reader import CachedReader, Meter
from fastreader.study.config import MethodConfig, Study
from fastreader.study.contents import example_digest
from fastreader.study.method import Answered, Batch, NotApplicable, OverLong, StudyMethod
from fastreader.study.registry import make

NO_COST = StageCost(0, 0, 0, 0, 0.0)
Done = Callable[[Answered | FastreaderError, StageCost], None]


def metered(program: Program[Answered], readers: Readers, done: Done) -> Program[None]:
    """Run a program and call `done` with its answer or error, and with its cost.

    Tokens are counted as if the program had run alone. Seconds are its share, by tokens, of the calls that its
    requests were packed in, and all of the calls that it made itself; replies from the cache take none.
    """
    cost = NO_COST
    own: float | None = None
    started = time.perf_counter()
    try:
        request = next(program)
        own = time.perf_counter() - started
        while True:
            try:
                replies = yield request
            except FastreaderError as error:
                request = program.throw(error)
                continue
            served: Any = readers.of(request.stage)  # a CachedReader, as all readers of a study
            tokens, seconds = served.last
            added = request_cost(request, replies, 0.0)
            share = added.total_tokens / tokens if added.total_tokens and tokens else 0.0
            cost += replace(added, seconds=seconds * share)
            request = program.send(replies)
    except StopIteration as end:
        answered: Answered = end.value
        done(answered, cost + direct_cost(answered, time.perf_counter() - started if own is None else own))
    except FastreaderError as error:
        done(error, cost)


def direct_cost(answered: Answered, seconds: float = 0.0) -> StageCost:
    """Return the cost of the calls that a method made itself, with `seconds` if the answer has no time."""
    stats, taken = answered.direct, seconds if answered.seconds is None else answered.seconds
    return StageCost(0, stats.total_tokens, stats.computed_tokens, answered.new_tokens, taken)


Row = tuple[str, str, dict[str, Any]]  # its key, the digest of what it is made from, and its values
_METRICS = {"em": exact_match, "f1": f1, "contained": contained}


def questions_of(study: Study, rows: Iterable[Any] | None = None) -> list[Example]:
    """Return the study's questions, each with its own id and its first N passages.

    Args:
        study: the study.
        rows: read instead of the study's file; None reads the file.

    Raises:
        InputError: if there is no such file, or there are no questions.
    """
    if rows is None:
        require(is_named(study.data) or Path(study.data).is_file(), f"study: data: {study.data}: no such file")
        found = load_examples(study.data, limit=study.limit)
    else:
        found = table_examples("questions", rows, limit=study.limit)
    examples = keyed(found)
    return [replace(e, passages=list(e.passages[: study.passages])) for e in examples]


@dataclass(frozen=True)
class Cell:
    """One method under one seed."""

    config: MethodConfig
    method: StudyMethod
    seed: int

    def key(self, example: Example, reader: str) -> str:
        """Return the key of the row of a question and a reader."""
        return json.dumps([example.id, self.config.label, reader, self.seed], ensure_ascii=False)

    def digest(self, example: Example) -> str:
        """Return a digest of what the row of a question is made from."""
        more = (example.candidates,) if self.method.chooses_from_rows else ()
        return example_digest(example, self.config.digest(), *more)

    def row(self, example: Example, reader: str, outcome: Answered | FastreaderError, cost: StageCost) -> Row:
        """Return the row of one answer, or of the error instead."""
        text = outcome.text if isinstance(outcome, Answered) else None
        texts = self.method.measured(outcome.text, outcome.trace) if isinstance(outcome, Answered) else ()
        right = example.answers
        values = {
            "question_id": example.id,
            "method": self.config.label,
            "reader": reader,
            "seed": self.seed,
            "answer": text,
            **{name: _mean(metric, texts, right) if texts and right else None for name, metric in _METRICS.items()},
            "left_out": str(outcome) if isinstance(outcome, NotApplicable) else None,
            "over_long": outcome.tokens if isinstance(outcome, OverLong) else None,
            "error": None if isinstance(outcome, (Answered, NotApplicable)) else str(outcome),
            "tokens": {
                "total_tokens": cost.total_tokens,
                "computed_tokens": cost.computed_tokens,
                "new_tokens": cost.new_tokens,
                "calls": cost.calls,
            },
            "seconds": round(cost.seconds, 4),
            "trace": outcome.trace if isinstance(outcome, Answered) else {},
        }
        return self.key(example, reader), self.digest(example), values


def _mean(metric: Callable[[str, Sequence[str]], float], texts: Sequence[str], right: Sequence[str]) -> float:
    return sum(metric(text, right) for text in texts) / len(texts)


@dataclass(frozen=True)
class CellGroup:
    """Questions that run together in another process.

    Attributes:
        questions: their ids.
        keys: of the rows that are missing.
    """

    questions: list[str]
    keys: list[str]


@dataclass(frozen=True)
class GroupDone:
    """What another process returns for a `CellGroup`.

    Attributes:
        readers: by name, the description of each reader that is loaded there, and the cost of its calls.
        rows: one of each answer.
    """

    readers: dict[str, tuple[dict[str, str], Meter]]
    rows: list[Row]


# Runs groups of a study's questions with the reader of that name in other processes, and yields each when it is done.
Elsewhere = Callable[[str, Study, list[Example], list[CellGroup]], Iterator[GroupDone]]


def cells_of(study: Study) -> list[Cell]:
    """Return the cells of a study, in the order of its methods."""
    return [
        Cell(config, method, seed)
        for config in study.methods
        for method in [make(config, study)]
        for seed in (study.seeds if method.draws else study.seeds[:1])
    ]


def run_group(
    reader: CachedReader,
    name: str,
    group: Sequence[Example],
    cells: Sequence[Cell],
    everything: list[Example],
    models: Callable[[str], CachedReader],
    *,
    missing: Collection[str],
    write: Callable[[Row], None],
) -> None:
    """Run every method's program for each question of a group whose row is missing, all of them in step.

    Args:
        reader: answers.
        name: the reader's name in the study.
        group: the questions.
        cells: of the study.
        everything: all questions of the study.
        models: returns the reader that a method names.
        missing: keys of the rows to make.
        write: called with each row as soon as it is made.
    """

    def done(cell: Cell, example: Example) -> Done:
        return lambda outcome, cost: write(cell.row(example, name, outcome, cost))

    programs: list[tuple[Program[None], Readers]] = []
    for cell in cells:
        todo = [example for example in group if cell.key(example, name) in missing]
        batch = Batch(reader, todo, cell.seed, everything, models)
        readers = cell.method.readers(batch) if todo else Readers(reader)
        for example, program in zip(todo, cell.method.programs(batch), strict=True):
            programs.append((metered(program, readers, done(cell, example)), readers))
    for outcome in run_together(programs):
        if outcome.error is not None:  # raised while writing a row; `metered` handles errors of the methods
            raise outcome.error
