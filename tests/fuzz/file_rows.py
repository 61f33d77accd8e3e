"""Rows in each format of questions. No import of the package, which atheris instruments later."""

from typing import Any

PASSAGES = [
    {"id": str(i), "title": f"T{i}", "text": f"Text {i}.", "score": 2.5 - i, "isgold": i == 0} for i in range(3)
]
QUESTION = {"question": "Who?", "answers": ["Ada"], "candidates": ["Ada", "Bea"], "id": "q1", "ctxs": PASSAGES}
FLASH: dict[str, Any] = {
    "id": "f",
    "question": "Who?",
    "golden_answers": ["A"],
    "output": {"retrieval_result": [{"id": 1, "contents": "T\nx"}]},
}
RANK = {
    "query": {"text": "Who?", "qid": 3},
    "candidates": [{"docid": "d", "score": 1, "doc": {"title": "T", "text": "x"}}],
}
