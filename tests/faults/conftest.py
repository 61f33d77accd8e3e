import json

import pytest
from fault_runs import runs
from helpers.commands import run as command


@pytest.fixture(scope="module")
def every(model, tmp_path_factory):
    """The runs, with the results of each without any fault. All that they import is imported before a fork."""
    folder = tmp_path_factory.mktemp("questions")
    questions = folder / "questions.jsonl"
    rows = [
        {
            "question": f"Which colour is number {i}?",
            "answers": ["blue"],
            "candidates": ["blue", "green"],
            "ctxs": [{"id": str(p), "text": f"Number {i} is {c}.", "score": -p} for p, c in enumerate(("blue", "red"))],
        }
        for i in range(9)
    ]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {}
    for name, run in runs(model, questions).items():
        output = folder / f"{name}.whole"
        command(*run.arguments(output))
        results = run.results(output)
        assert len(results) == run.rows
        found[name] = (run, results)
    return found
