"""Data for the page's browser of single questions, small enough for one page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastreader.data import Example
from fastreader.report.study_data import METRIC_NAMES, StudyRun

BUDGET = 3_800_000
"""Maximum size of the JSON in bytes; with the figures, a page stays below 5 MB."""
_LENGTHS = (1200, 600, 300, 150, 60)
# Keys that are of no interest in a browser, or repeat the method's name and the passages.
_HIDDEN = {
    "observations", "details", "bias", "found", "documents", "finishes", "preference", "replied",
    "layout", "reply", "prompt_tokens", "finish_reason",
}  # fmt: skip


def browser_data(run: StudyRun) -> tuple[dict[str, Any], str]:
    """Return questions with answers and traces, cut to fit, and a note of what was cut ("" for nothing)."""
    for length in _LENGTHS:
        values, cut = _values(run, length, None)
        if _size(values) <= BUDGET:
            return values, f"Texts are cut after {length} characters; the run's folder has them whole." if cut else ""
    count = len(run.questions)
    while count > 1:
        count = count // 2
        values, _ = _values(run, _LENGTHS[-1], count)
        if _size(values) <= BUDGET:
            break
    return values, (
        f"Only the first {count} of {len(run.questions)} questions are shown, with texts cut after {_LENGTHS[-1]} "
        "characters; the run's folder has them all."
    )


def _values(run: StudyRun, length: int, count: int | None) -> tuple[dict[str, Any], bool]:
    """Return the data, and whether a text in it was cut."""
    shorten, shown = _Shorten(length), tuple(dict.fromkeys((*METRIC_NAMES, run.study.metric)))
    labels = {c.label: i for i, c in enumerate(run.conditions)}
    numbers = {(c.method, c.reader): i for i, c in enumerate(run.conditions)}
    several = len(run.study.seeds) > 1
    rows: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for row in run.rows:
        if (condition := numbers.get((row["method"], row["reader"]))) is not None:
            own = run.attribution.get((row["question_id"], row["reader"], row["answer"]), {}).get("attribution")
            if own is not None:
                kept = {name: own[name] for name in ("shapley", "alone")}
                row = {**row, "trace": {**row["trace"], "attribution": kept}}
            rows.setdefault(row["question_id"], []).append((condition, row))
    values = {
        "metric": shown.index(run.study.metric),
        "methods": [c.label for c in run.conditions],
        # Each method gains over its own reader's baseline; a baseline over itself.
        "baselines": [labels[run.baselines.get(c.label, c.label)] for c in run.conditions],
        "questions": [
            _question(example, sorted(rows.get(key, []), key=lambda item: item[0]), several, shorten, shown)
            for key, example in list(run.questions.items())[:count]
        ],
    }
    return values, shorten.cut


def _question(
    example: Example,
    rows: list[tuple[int, dict[str, Any]]],
    several: bool,
    shorten: _Shorten,
    metrics: Sequence[str],
) -> dict[str, Any]:
    """Return one question, whose own passages come before those that its methods took from elsewhere, each once."""
    passages = _Passages(example, shorten)
    answers = [_answer(row, condition, several, passages, shorten, metrics) for condition, row in rows]
    return {
        "id": example.id,
        "question": example.question,
        "answers": example.answers,
        "passages": passages.passages,
        "own": len(example.passages),
        "rows": answers,
    }


class _Passages:
    """A question's passages and others that were read with it, each once, with its kind in the layouts."""

    def __init__(self, example: Example, shorten: _Shorten) -> None:
        self._shorten = shorten
        self.passages: list[dict[str, Any]] = []
        self._places: dict[tuple[str, str], int] = {}
        for p in example.passages:
            self._add(p.title, p.text, gold=bool(p.is_gold), score=shorten.all(p.score))

    def order(self, entries: list[Any]) -> list[int]:
        """Return the places of the passages as read."""
        places = []
        for entry in entries:
            if isinstance(entry, int):
                places.append(entry)
                continue
            place = entry.get("index")
            if place is None:
                known = self._places.get((entry["title"], entry["text"]))
                place = self._add(entry["title"], entry["text"]) if known is None else known
            if place < len(self.passages) and entry["kind"] != "gold":
                self.passages[place]["kind"] = entry["kind"]
            places.append(place)
        return places

    def _add(self, title: str, text: str, **more: Any) -> int:
        place = len(self.passages)
        self._places.setdefault((title, text), place)
        values = {"title": title, "text": self._shorten.text(text), **more}
        self.passages.append({key: value for key, value in values.items() if value not in (None, "", False)})
        return place


def _answer(
    row: dict[str, Any],
    condition: int,
    several: bool,
    passages: _Passages,
    shorten: _Shorten,
    metrics: Sequence[str],
) -> dict[str, Any]:
    out: dict[str, Any] = {"m": condition, "answer": row["answer"]}
    if any(row.get(name) is not None for name in metrics):
        out["right"] = [shorten.all(row.get(name)) for name in metrics]
    if several:
        out["seed"] = row["seed"]
    if why := row["left_out"] or row["error"]:
        out["why"], out["failed"] = why, row["error"] is not None
    if row["tokens"]["total_tokens"] is not None and row["answer"] is not None:
        out["tokens"] = [row["tokens"]["computed_tokens"], row["tokens"]["total_tokens"]]
    if trace := _trace(row["trace"], passages, shorten):
        out["trace"] = trace
    return out


def _trace(trace: dict[str, Any], passages: _Passages, shorten: _Shorten) -> dict[str, Any]:
    """Return the parts of interest to a person: no observations, and only the titles of an ensemble's documents."""
    kept: dict[str, Any] = {}
    for key, value in trace.items():
        if key in _HIDDEN or value is None or value is False:
            continue
        if key == "order":
            kept[key] = passages.order(value)
            continue
        if key == "ensemble":
            documents = {
                d["retriever"]: [p["title"] or p["text"][:60] for p in d["passages"]] for d in value["documents"]
            }
            vote = {k: value["vote"][k] for k in ("winner", "scores", "support", "abstained")}
            value = {"predictions": value["predictions"], "documents": documents, "vote": vote}
        kept[key] = shorten.all(value)
    return kept


class _Shorten:
    """Cut texts and round numbers, and record whether any text was cut."""

    def __init__(self, length: int) -> None:
        self._length = length
        self.cut = False

    def text(self, text: str) -> str:
        """Return the text, cut if it is too long."""
        if len(text) <= self._length:
            return text
        self.cut = True
        return text[: self._length].rstrip() + "…"

    def all(self, value: Any) -> Any:
        """Return a JSON value with its texts cut and its numbers rounded."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, float):
            return round(value, 4)
        if isinstance(value, list):
            return [self.all(v) for v in value]
        if isinstance(value, dict):
            return {k: self.all(v) for k, v in value.items()}
        return value


def _size(values: dict[str, Any]) -> int:
    return len(json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode())
