"""A paper's figures next to a run's, for the same reader, data set and retriever, and what differs from the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastreader.report.study_data import StudyRun
from fastreader.study.published import Published

NOT_STATED = "not stated"


def published_rows(run: StudyRun) -> list[dict[str, Any]]:
    """Return a row for each published figure of a condition and metric that the run has too.

    A row holds source, method, reader, metric, n (questions of the run), ours (the run's mean), published, and
    questions (of the paper, None if unknown).
    """
    rows = []
    for condition in run.conditions:
        for entry in run.study.published:
            if _differences(run, entry, condition.reader):
                continue
            for metric, figures in entry.values.items():
                outcomes = run.outcomes(condition, metric)
                if condition.method in figures and outcomes:
                    rows.append(
                        {
                            "source": entry.source,
                            "method": condition.label,
                            "reader": condition.reader,
                            "metric": metric,
                            "n": len(outcomes),
                            "ours": run.interval(outcomes).estimate,
                            "published": figures[condition.method],
                            "questions": entry.questions,
                        }
                    )
    return rows


def remarks(run: StudyRun) -> list[str]:
    """Return sentences on published figures that are not comparable, and on how the study differs from the paper."""
    sentences = []
    for source in dict.fromkeys(entry.source for entry in run.study.published):
        entries = [entry for entry in run.study.published if entry.source == source]
        found = [_differences(run, entry, reader) for entry in entries for reader in run.study.readers]
        if not all(found):
            continue
        kinds = [kind for kind in ("reader", "retriever", "data set") if all(kind in each for each in found)]
        kinds = kinds or list(dict.fromkeys(kind for each in found for kind in each))
        parts = (_compared(kind, [each[kind] for each in found if kind in each]) for kind in kinds)
        sentences.append(f"{source} is not shown next to these figures: {'; '.join(parts)}.")
    return [*sentences, *run.study.differs]


def _differences(run: StudyRun, entry: Published, reader: str) -> dict[str, tuple[str, str]]:
    """Return the differences between paper and run, (the paper's, the run's), by what they are."""
    study, served = run.study, run.served.get(reader, "")
    ours = {
        "reader": (served or reader, {_plain(reader), _plain(served)} & {_plain(name) for name in entry.readers}),
        "retriever": (study.retriever, not entry.retriever or _plain(study.retriever) == _plain(entry.retriever)),
        "data set": (study.data_set, _plain(study.data_set) == _plain(entry.data_set)),
    }
    theirs = {"reader": " or ".join(entry.readers), "retriever": entry.retriever, "data set": entry.data_set}
    return {what: (theirs[what], own or NOT_STATED) for what, (own, same) in ours.items() if not same}


def _compared(kind: str, pairs: Sequence[tuple[str, str]]) -> str:
    theirs, ours = (", ".join(dict.fromkeys(values)) for values in zip(*pairs, strict=True))
    return f"its {kind} is {theirs}, here {ours}"


def _plain(name: str) -> str:
    return "".join(name.split()).lower()
