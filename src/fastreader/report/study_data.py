"""The data of a study's run in the form that the report needs."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastreader.core.checks import require
from fastreader.core.lazy import cached_property
from fastreader.data import Example
from fastreader.errors import InputError
from fastreader.noise.labels import same_text
from fastreader.statistics import Interval, bootstrap
from fastreader.study import RunFolder, Study
from fastreader.study.folder import COSTS, READERS, VOTER

METRIC_NAMES = {"em": "exact match", "f1": "F1", "contained": "answer contained"}
MEASURE_NAMES = {"words": "answer contained as words", "rouge_l": "ROUGE-L"}


class Missing(InputError):
    """A run lacks what a section of the report needs, which the message names."""


@dataclass(frozen=True)
class ReportCondition:
    """A method as run by one reader.

    Attributes:
        label: its name in the report.
        method: its name in the study.
        reader: the reader's name.
        spec: its name in the registry.
    """

    label: str
    method: str
    reader: str
    spec: str


class StudyRun:
    """The rows of a run, by condition.

    Attributes:
        study: the study.
        questions: by id.
        rows: all rows.
        attribution: rows of attribution.jsonl, by question, reader and answer.
        served: names of the models behind the readers, which an engine may serve under another name than the study's.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Read a run folder.

        Raises:
            InputError: if the folder is not that of a run, or holds no answers.
        """
        run = RunFolder(folder)
        self.study: Study = run.study()
        self.questions: dict[str, Example] = {str(e.id): e for e in run.questions()}
        measures = run.measures()
        self.rows: list[dict[str, Any]] = [row | measures.get(row["id"], {}) for row in run.rows()]
        answered = any(row["answer"] is not None for row in self.rows)
        require(answered, f"{run.path}: holds no answers yet; run fastreader study with --resume first")
        self.attention = run.attention()
        self.conflicts = run.conflicts()
        self.attribution = {(row["question_id"], row["reader"], row["answer"]): row for row in run.attribution()}
        self.costs: dict[str, dict[str, Any]] = run.read_json(COSTS) or {}
        about: dict[str, dict[str, str]] = run.read_json(READERS) or {}
        self.served = {name: facts.get("name", "") for name, facts in about.items()}
        self.voters: dict[str, dict[str, Any]] = run.read_json(VOTER) or {}

    @cached_property
    def conditions(self) -> list[ReportCondition]:
        """Methods with rows, in the study's order, for each reader."""
        present = {(row["method"], row["reader"]) for row in self.rows}
        several = len({reader for _, reader in present}) > 1
        return [
            ReportCondition(f"{m.label} · {reader}" if several else m.label, m.label, reader, m.method)
            for reader in self.study.readers
            for m in self.study.methods
            if (m.label, reader) in present
        ]

    def of(self, condition: ReportCondition) -> list[dict[str, Any]]:
        """Return the rows of a condition, including those without an answer."""
        return self._by_condition[condition.method, condition.reader]

    @cached_property
    def _by_condition(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for row in self.rows:
            found[row["method"], row["reader"]].append(row)
        return found

    def outcomes(self, condition: ReportCondition, metric: str | None = None) -> dict[str, float]:
        """Return the metric's mean over seeds, by question, for questions with an answer and right answers."""
        name = metric or self.study.metric
        values: dict[str, list[float]] = defaultdict(list)
        for row in self.of(condition):
            if row.get(name) is not None:
                values[row["question_id"]].append(row[name])
        return {question: math.fsum(v) / len(v) for question, v in values.items()}

    @property
    def baselines(self) -> dict[str, str]:
        """The baseline of each condition's reader, by the condition's label, if that baseline was run."""
        labels = {(c.method, c.reader): c.label for c in self.conditions}
        return {
            c.label: labels[self.study.reference, c.reader]
            for c in self.conditions
            if c.method != self.study.reference and (self.study.reference, c.reader) in labels
        }

    @cached_property
    def clusters(self) -> dict[str, Any]:
        """The gold passage of each question, which makes one cluster of the questions that share it."""
        found = {}
        for key, example in self.questions.items():
            gold = next((p for p in example.passages if p.is_gold), None)
            if gold is not None:
                found[key] = "\n".join(same_text(gold))
        return found

    def interval(self, values: Mapping[str, float | Sequence[float]]) -> Interval:
        """Return the mean over questions with its interval, by bootstrap over gold passages.

        Args:
            values: by question; several values, one per seed, count as their mean.
        """
        means = [math.fsum(v) / len(v) if isinstance(v, Sequence) else v for v in values.values()]
        return bootstrap(means, clusters=[self.clusters.get(q, ("question", q)) for q in values])

    @property
    def gold_passages(self) -> int:
        """Number of distinct gold passages."""
        return len(set(self.clusters.values()))

    @property
    def metrics(self) -> dict[str, str]:
        """Metrics and further measures in words, by name: the study's metric, the other metrics, the measures."""
        measured = {name: MEASURE_NAMES.get(name, name) for name in self.study.measured}
        return {self.study.metric: self.metric_name} | METRIC_NAMES | measured

    @property
    def metric_name(self) -> str:
        """The study's metric in words."""
        return (METRIC_NAMES | MEASURE_NAMES).get(self.study.metric, self.study.metric)

    def traces(self, key: str) -> Iterator[tuple[ReportCondition, dict[str, Any]]]:
        """Yield (condition, row) for every row whose trace has `key`."""
        for condition in self.conditions:
            for row in self.of(condition):
                if key in row["trace"]:
                    yield condition, row


def interval_cells(name: str, interval: Interval) -> dict[str, float]:
    """Return the columns of an estimate and its bounds: `name`, "low" and "high"."""
    return {name: interval.estimate, "low": interval.low, "high": interval.high}
