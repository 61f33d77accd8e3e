"""A study's rows of noise layouts, in the form that `noise.summarise` takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fastreader.data import Example
from fastreader.noise.ask import NoiseAnswer, NoiseAnswers
from fastreader.noise.layouts import LayoutSpec
from fastreader.noise.materials import gather
from fastreader.study.config import Study


def noise_answers(
    study: Study,
    examples: Sequence[Example],
    rows: Iterable[Mapping[str, Any]],
    reader: str,
    seed: int,
    measures: Mapping[str, Mapping[str, float | None]] = MappingProxyType({}),
) -> list[NoiseAnswers]:
    """Return the answers of one reader under one seed to the study's noise layouts.

    Layouts that draw nothing have rows under the study's first seed only. If two methods have the same layout, the
    first counts. Rows with an error are left out. `measures` are `RunFolder.measures`.
    """
    layouts: dict[str, str] = {}  # by method
    for method in study.methods:
        family, _, variant = method.method.partition(":")
        if family == "noise" and (name := LayoutSpec.parse(variant).name) not in layouts.values():
            layouts[method.label] = name
    found = {str(e.id): NoiseAnswers(str(e.id), _cluster(e)) for e in examples}
    for row in sorted(rows, key=lambda row: row["seed"] != seed):
        name, question = layouts.get(row["method"], ""), found.get(row["question_id"])
        if not name or question is None or row["reader"] != reader or row["error"] is not None:
            continue
        if row["seed"] not in (seed, study.seeds[0]) or name in (*question.answers, *question.over_long):
            continue
        if row["over_long"] is not None:
            question.over_long[name] = row["over_long"]
        elif row["left_out"] is not None:
            question.missing[name] = row["left_out"]
        elif row["contained"] is None:
            question.missing[name] = f"{name}: the question has no right answers"
        else:
            trace = row["trace"]
            question.answers[name] = NoiseAnswer(
                text=trace["reply"],
                right=row["contained"],
                no_answer=trace["no_answer"],
                kinds=tuple(entry["kind"] for entry in trace["order"]),
                prompt_tokens=trace["prompt_tokens"],
                finish_reason=trace["finish_reason"],
                measures={key: value for key, value in measures.get(row["id"], {}).items() if value is not None},
            )
    return list(found.values())


def _cluster(example: Example) -> str | None:
    return gather(example).cluster if example.answers and example.passages else None
