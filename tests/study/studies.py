"""Helpers that run small studies with a scripted reader and read their rows."""

import json

from helpers.scripted import ScriptedReader

from fastreader.study import RunFolder, Study, run_study

METHODS = ["sure:base", "sure", "noise:gold", "noise:random:2:far", "noise:random:2:near", "eor"]


def passages(q, gold):
    return [
        {"id": f"{q}/{p}", "title": f"T{q}{p}", "text": f"Text {q}{p}." + (f" It is a{q}." if p == q % 3 else ""),
         "score": 9 - p, **({"isgold": p == q % 3} if gold else {})}
        for p in range(3)
    ]  # fmt: skip


def data(folder, count=5, gold=True, name="q.jsonl"):
    file = folder / name
    rows = [
        {"id": f"q{q}", "question": f"Question {q}?", "answers": [f"a{q}"], "ctxs": passages(q, gold)}
        for q in range(count)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def write(prompt, i):
    """Return the right answer if the prompt has the gold passage and its question."""
    for q in range(9):
        if f"It is a{q}." in prompt and f"Question {q}?" in prompt:
            return f"a{q}"
    return "nothing"


def study_of(tmp_path, methods=METHODS, count=5, gold=True, **more):
    values = {"data": data(tmp_path, count, gold), "readers": ["scripted"], "methods": methods, **more}
    return Study.of({**values, "eor": {"retrievers": ["R@1", "R", "ReFree"]}, **more})


def run(study, folder, reader=None, **options):
    reader = reader or ScriptedReader(write)
    return run_study(study, folder, load=lambda name: reader, progress=False, **options)


def rows_of(folder):
    return {row["id"]: row for row in RunFolder(folder).rows()}


def without_seconds(rows):
    return {key: {k: v for k, v in row.items() if k != "seconds"} for key, row in rows.items()}
