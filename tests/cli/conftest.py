import json

import pytest


@pytest.fixture
def questions(tmp_path):
    rows = [
        {
            "question": f"Which colour is number {i}?",
            "answers": ["blue"],
            "candidates": ["blue", "green"],
            "ctxs": [{"id": str(p), "title": "", "text": f"Number {i} is {c}."} for p, c in enumerate(("blue", "red"))],
        }
        for i in range(12)
    ]
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file
