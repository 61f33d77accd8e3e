"""Measure the answers of a run, each once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastreader.data import Example
from fastreader.data.result_log import ResultLog
from fastreader.study.config import Study
from fastreader.study.folder import MEASURES, RunFolder
from fastreader.study.measures.case import Case, Load
from fastreader.study.measures.registry import measure


def write_measures(study: Study, run: RunFolder, examples: Sequence[Example], load: Load) -> None:
    """Write the study's further measures of all answers to measures.jsonl, except those that the file holds."""
    if not study.measures:
        return
    rows = [row for row in run.rows() if row["answer"] is not None]
    by_id = {example.id: example for example in examples}
    baseline = {(row["question_id"], row["reader"]): row["answer"] for row in rows if row["method"] == study.reference}
    with ResultLog(run.file(MEASURES), resume=True) as log:
        for name in study.measures:
            todo = [row for row in rows if _key(row, name) not in log]
            values = measure(name, load)([_case(row, by_id, baseline) for row in todo]) if todo else []
            for row, value in zip(todo, values, strict=True):
                log.append(_key(row, name), {"row": row["id"], "measure": name, "value": value})


def _key(row: dict[str, Any], name: str) -> str:
    return json.dumps([row["id"], name], ensure_ascii=False)


def _case(row: dict[str, Any], examples: dict[str | None, Example], baseline: dict[tuple[str, str], str]) -> Case:
    key = row["question_id"], row["reader"]
    return Case(examples[row["question_id"]], row["answer"], row["trace"], baseline.get(key))
