"""Contradictions among the passages of each question, over the answers that the methods of a run gave."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from fastreader.core.progress import track
from fastreader.data import Example
from fastreader.data.result_log import ResultLog
from fastreader.errors import ContextOverflowError
from fastreader.passages.conflicts import conflicts
from fastreader.scoring.marginal_answer import distinct
from fastreader.study.cached_reader import CachedReader
from fastreader.study.config import Study
from fastreader.study.folder import CONFLICTS, RunFolder
from fastreader.study.methods.reading import template_of


def write_conflicts(
    study: Study,
    run: RunFolder,
    examples: Sequence[Example],
    name: str,
    reader: Callable[[], CachedReader],
    progress: bool | None,
) -> bool:
    """Compare a question's passages over its distinct answers, all methods and seeds of a reader together.

    A question needs two passages and two distinct answers; each comparison is a row of conflicts.jsonl. Rows that the
    folder has are kept; a question with new answers, of methods added later, gets a new row, which replaces the old
    one. A passage too long for the context gives a row with an error.

    Args:
        study, run, examples: of the run, whose answers exist.
        name: the reader's name in the study.
        reader: returns the reader; not called if no comparison is missing.
        progress: show a bar on standard error; None shows it on a terminal.

    Returns:
        Whether the reader compared anything.

    Raises:
        InputError: if the reader does not score token ids.
    """
    if not study.conflicts:
        return False
    answers: dict[str, list[str]] = {}
    for row in run.rows():
        if row["reader"] == name and row["answer"] is not None:
            answers.setdefault(row["question_id"], []).append(row["answer"])
    with ResultLog(run.file(CONFLICTS), resume=True) as log:
        todo = []
        for example in examples:
            candidates = distinct(answers.get(str(example.id), []))[0]
            key = json.dumps([example.id, name, sorted(candidates)], ensure_ascii=False)
            if len(candidates) > 1 and len(example.passages) > 1 and key not in log:
                todo.append((key, example, candidates))
        with track("comparing passages", len(todo), "questions", progress) as advance:
            for key, example, candidates in todo:
                row = {"question_id": example.id, "reader": name, "conflicts": None, "error": None}
                try:
                    found = conflicts(reader().tree_reader(), example, None, candidates, template=template_of(study))
                    row["conflicts"] = found.to_dict()
                except ContextOverflowError as error:
                    row["error"] = str(error)
                log.append(key, row)
                advance(1)
    return bool(todo)
