"""Reading a pool of passages."""

from __future__ import annotations

import gzip

import pytest

from fastreader.data import Passage, load_passages
from fastreader.errors import InputError


def test_pool(tmp_path):
    file = tmp_path / "pool.jsonl.gz"
    file.write_bytes(
        gzip.compress(b'{"id": 3, "title": "T", "text": "one"}\n\n{"_id": "x", "contents": "two", "year": 1}\n')
    )
    assert load_passages(file) == [Passage("one", "T", "3"), Passage("two", "", "x", metadata={"year": 1})]


def test_contents_with_a_title_and_documents_that_are_a_title_alone(tmp_path):
    file = tmp_path / "pool.jsonl"
    file.write_text('{"id": 2, "contents": "Title\\nbody"}\n{"_id": "c", "title": "alone", "text": ""}\n')
    assert load_passages(file) == [Passage("body", "Title", "2"), Passage("alone", "", "c")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"text": "a"}\n{"id": "b"}\n', "line 2: missing key 'text'"),
        ('{"text": " "}\n', "line 1: text: expected text that is not empty"),
        ("{\n", "line 1: broken JSON"),
        ("\n", "at least one passage"),
    ],
)
def test_bad_input(tmp_path, text, message):
    file = tmp_path / "pool.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        load_passages(file)
    with pytest.raises(InputError, match="cannot be read"):
        load_passages(tmp_path / "none.jsonl")
