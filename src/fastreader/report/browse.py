"""What the page's browser of single questions shows, small enough for one page."""

from __future__ import annotations

import json
from typing import Any

from fastreader.report.study_data import StudyRun

BUDGET = 3_000_000
"""Characters of JSON; with the figures, a page stays below 5 MB."""
_LENGTHS = (1200, 600, 300, 150, 60)


def browser_data(run: StudyRun) -> tuple[dict[str, Any], str]:
    """Questions with their answers and traces, texts cut until they fit, and what was cut; "" where nothing was."""
    for length in _LENGTHS:
        values = _values(run, length, None)
        if _size(values) <= BUDGET:
            cut = _cut_any(run, length)
            return values, f"Texts are cut after {length} characters; the run's folder has them whole." if cut else ""
    count = len(run.questions)
    while count > 1:
        count = count // 2
        values = _values(run, _LENGTHS[-1], count)
        if _size(values) <= BUDGET:
            break
    return values, (
        f"The first {count} of {len(run.questions)} questions are shown, texts cut after {_LENGTHS[-1]} characters; "
        "the run's folder has them all."
    )


def _values(run: StudyRun, length: int, count: int | None) -> dict[str, Any]:
    labels = {(c.method, c.reader): i for i, c in enumerate(run.conditions)}
    several = len(run.study.seeds) > 1
    answers: dict[str, list[dict[str, Any]]] = {}
    for row in run.rows:
        if (condition := labels.get((row["method"], row["reader"]))) is not None:
            answers.setdefault(row["question_id"], []).append(_answer(row, condition, several, length))
    shown = list(run.questions.items())[:count]
    return {
        "measure": run.study.measure,
        "methods": [c.label for c in run.conditions],
        "baseline": next((i for i, c in enumerate(run.conditions) if c.method == run.study.reference), 0),
        "questions": [
            {
                "id": key,
                "question": example.question,
                "answers": example.answers,
                "passages": [
                    {"title": p.title, "text": _short(p.text, length), "gold": p.is_gold, "score": p.score}
                    for p in example.passages
                ],
                "rows": sorted(answers.get(key, []), key=lambda row: row["m"]),
            }
            for key, example in shown
        ],
    }


def _answer(row: dict[str, Any], condition: int, several: bool, length: int) -> dict[str, Any]:
    out: dict[str, Any] = {"m": condition, "answer": row["answer"]}
    out["right"] = {name: _rounded(row[name]) for name in ("em", "f1", "contained")}
    if several:
        out["seed"] = row["seed"]
    if why := row["left_out"] or row["error"]:
        out["why"], out["failed"] = why, row["error"] is not None
    out["tokens"] = row["tokens"]
    out["trace"] = _trace(row["trace"], length)
    return out


def _trace(trace: dict[str, Any], length: int) -> dict[str, Any]:
    """What a person looks at: no observations, and an ensemble's documents by title alone."""
    kept: dict[str, Any] = {}
    for key, value in trace.items():
        if key in ("observations", "details", "bias", "found", "documents", "finishes", "preference", "replied"):
            continue
        if key == "ensemble":
            documents = {
                d["retriever"]: [p["title"] or _short(p["text"], 60) for p in d["passages"]] for d in value["documents"]
            }
            vote = {k: value["vote"][k] for k in ("winner", "scores", "support", "abstained")}
            value = {"predictions": value["predictions"], "documents": documents, "vote": vote}
        kept[key] = _rounded(_clipped(value, length))
    return kept


def _clipped(value: Any, length: int) -> Any:
    if isinstance(value, str):
        return _short(value, length)
    if isinstance(value, list):
        return [_clipped(v, length) for v in value]
    if isinstance(value, dict):
        return {k: _clipped(v, length) for k, v in value.items()}
    return value


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return value


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length].rstrip() + "…"


def _cut_any(run: StudyRun, length: int) -> bool:
    return any(len(p.text) > length for e in run.questions.values() for p in e.passages)


def _size(values: dict[str, Any]) -> int:
    return len(json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode())
