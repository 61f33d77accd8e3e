"""Append the rows of a study that may stop and resume, and choose and name what such studies share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lib.shared import fingerprint, unpack

from fastreader import Example, Passage, Reader
from fastreader.core.progress import track
from fastreader.data.fingerprints import reader_identity
from fastreader.data.result_log import ResultLog

Row = dict[str, Any]


class Job(NamedTuple):
    """A row to make.

    Attributes:
        key: of the row.
        make: returns the row.
        digest: of what the row is made from, if the key and the settings do not say it; None if they do.
    """

    key: str
    make: Callable[[], Row]
    digest: str | None = None


def log_of(folder: Path, name: str, part: str = "") -> Path:
    """Return the log of a reader in the folder of a run."""
    return folder / f"{name}{part}.jsonl"


def settings_of(reader: Reader, data: Path, passages: int) -> Row:
    """Return what a run that resumes may not change."""
    return {"reader": reader_identity(reader.describe()), "data": fingerprint(data), "passages": passages}


def best_passages(example: Example) -> list[Passage]:
    """Return the passages of a question by the retriever's score, best first."""
    return sorted(example.passages, key=lambda passage: -(passage.score or 0.0))


def append_missing(
    log: Path,
    settings: Row,
    jobs: Sequence[Job],
    *,
    label: str,
    unit: str = "questions",
    prepare: Callable[[Sequence[Job]], object] = len,
    batch: int = 1,
) -> None:
    """Append the rows that a log lacks, each as it is made.

    Args:
        log: its file, which may be compressed.
        settings: stored with each row; a log with others raises.
        jobs: the rows, in the order in which they are made.
        label, unit: of the progress bar.
        prepare: called with each batch of jobs that lack their rows, before the first of them is made.
        batch: number of jobs of a batch.
    """
    with ResultLog(unpack(log), settings=settings, resume=True) as rows:
        todo = [job for job in jobs if not rows.holds(job.key, job.digest)]
        with track(label, len(jobs), unit, None) as advance:
            advance(len(jobs) - len(todo))
            for start in range(0, len(todo), batch):
                part = todo[start : start + batch]
                prepare(part)
                for job in part:
                    rows.append(job.key, job.make(), example=job.digest)
                    advance(1)
