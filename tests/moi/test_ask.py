"""fastreader ask --method moi."""

import json

import pytest
from support import byte_tokenizer, tiny_llama
from typer.testing import CliRunner

from fastreader.cli import app

PASSAGES = ("The Nile is in Cairo.", "The Seine is in Paris.", "Lima has the Rimac.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("model")
    tiny_llama().save_pretrained(where)
    byte_tokenizer().save_pretrained(where)
    return str(where)


@pytest.fixture
def questions(tmp_path):
    file = tmp_path / "questions.jsonl"
    rows = [{"id": str(i), "question": f"Which river {i}?", "ctxs": [{"text": p} for p in PASSAGES]} for i in range(2)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def ask(*arguments):
    return CliRunner().invoke(app, ["ask", "--method", "moi", "--no-progress", *arguments])


def test_answers_and_orders_as_json(folder, questions):
    done = ask(questions, "-m", folder, "--format", "jsonl")
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["id"] for row in rows] == ["0", "1"]
    for row in rows:
        assert sorted(p["index"] for p in row["ranked"]["passages"]) == [0, 1, 2]
        assert row["answer"] == row["reading"]["text"]


def test_explain_shows_the_order_and_says_that_no_bias_was_known(folder, questions):
    done = ask(questions, "-m", folder, "--limit", "1", "--explain")
    assert done.exit_code == 0, done.output
    assert "retrieved as" in done.stdout and "The Seine is in Paris." in done.stdout
    assert "Caution" in done.stdout


def test_resume_adds_what_is_missing(folder, questions, tmp_path):
    output = tmp_path / "answers.jsonl"
    assert ask(questions, "-m", folder, "-o", str(output), "--limit", "1").exit_code == 0
    first = output.read_text()
    assert ask(questions, "-m", folder, "-o", str(output), "--resume").exit_code == 0
    whole = output.read_text()
    assert whole.startswith(first) and [json.loads(x)["id"] for x in whole.splitlines()] == ["0", "1"]


def test_one_passage_is_read_as_it_is(folder):
    done = ask("-q", "Which river?", "-p", "The Nile.", "-m", folder, "--format", "jsonl")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["ranked"]["order"] == "given"
