"""A study's run, as the report looks at it."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fastreader.data import Example
from fastreader.errors import InputError
from fastreader.noise.labels import same_text
from fastreader.statistics import Interval, bootstrap
from fastreader.study import RunFolder, Study
from fastreader.study.folder import COSTS, VOTER

MEASURES = ("em", "f1", "contained")
MEASURE_NAMES = {"em": "exact match", "f1": "F1", "contained": "answer contained"}


class Missing(InputError):
    """A run does not hold what a section of the report needs; the message says what."""


@dataclass(frozen=True)
class Condition:
    """A method as one reader ran it.

    Attributes:
        label: what the report calls it.
        method: its name in the study.
        reader: the reader's name.
        spec: the method as the registry knows it.
    """

    label: str
    method: str
    reader: str
    spec: str


class StudyRun:
    """The rows of a run, by condition.

    Attributes:
        study: what was run.
        questions: by id.
        rows: all of them.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Read a run folder.

        Raises:
            InputError: it is none, or holds no answers.
        """
        run = RunFolder(folder)
        self.study: Study = run.study()
        self.questions: dict[str, Example] = {str(e.id): e for e in run.questions()}
        self.rows: list[dict[str, Any]] = run.rows()
        if not any(row["answer"] is not None for row in self.rows):
            raise InputError(f"{run.path}: holds no answers yet; run fastreader study with --resume first")
        self.attention = run.attention()
        self.costs: dict[str, dict[str, Any]] = run.read_json(COSTS) or {}
        self.voters: dict[str, dict[str, Any]] = run.read_json(VOTER) or {}

    @cached_property
    def conditions(self) -> list[Condition]:
        """Methods in the study's order, for each reader; those without a row are not among them."""
        present = {(row["method"], row["reader"]) for row in self.rows}
        several = len({reader for _, reader in present}) > 1
        return [
            Condition(f"{m.label} · {reader}" if several else m.label, m.label, reader, m.method)
            for reader in self.study.readers
            for m in self.study.methods
            if (m.label, reader) in present
        ]

    def of(self, condition: Condition) -> list[dict[str, Any]]:
        """Its rows, those without an answer included."""
        return self._by_condition[condition.method, condition.reader]

    @cached_property
    def _by_condition(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for row in self.rows:
            found[row["method"], row["reader"]].append(row)
        return found

    def outcomes(self, condition: Condition, measure: str | None = None) -> dict[str, float]:
        """By question, the measure's mean over seeds; questions without an answer or right answers are not in it."""
        name = measure or self.study.measure
        values: dict[str, list[float]] = defaultdict(list)
        for row in self.of(condition):
            if row[name] is not None:
                values[row["question_id"]].append(row[name])
        return {question: math.fsum(v) / len(v) for question, v in values.items()}

    @property
    def baselines(self) -> dict[str, str]:
        """For each condition's label its reader's baseline, where that was run."""
        labels = {(c.method, c.reader): c.label for c in self.conditions}
        return {
            c.label: labels[self.study.reference, c.reader]
            for c in self.conditions
            if c.method != self.study.reference and (self.study.reference, c.reader) in labels
        }

    @cached_property
    def clusters(self) -> dict[str, Any]:
        """Questions that share a gold passage are one cluster."""
        found = {}
        for key, example in self.questions.items():
            gold = next((p for p in example.passages if p.is_gold), None)
            if gold is not None:
                found[key] = "\n".join(same_text(gold))
        return found

    def interval(self, values: Mapping[str, float | Sequence[float]]) -> Interval:
        """Mean over questions with its interval, by bootstrap over gold passages.

        Args:
            values: by question; several, as of several seeds, count as their mean.
        """
        means = [math.fsum(v) / len(v) if isinstance(v, Sequence) else v for v in values.values()]
        return bootstrap(means, clusters=[self.clusters.get(q, ("question", q)) for q in values])

    @property
    def gold_passages(self) -> int:
        """Distinct gold passages."""
        return len(set(self.clusters.values()))

    @property
    def measure_name(self) -> str:
        """The study's measure in words."""
        return MEASURE_NAMES[self.study.measure]

    def traces(
        self, key: str, chosen: Callable[[Condition], bool] = lambda c: True
    ) -> Iterator[tuple[Condition, dict[str, Any]]]:
        """(condition, row) of every row whose trace holds `key`."""
        for condition in self.conditions:
            if chosen(condition):
                for row in self.of(condition):
                    if key in row["trace"]:
                        yield condition, row


def only(values: Sequence[Any], what: str, because: str) -> Sequence[Any]:
    """`values`, which are there.

    Raises:
        Missing: there are none.
    """
    if not values:
        raise Missing(f"{what}: {because}")
    return values
