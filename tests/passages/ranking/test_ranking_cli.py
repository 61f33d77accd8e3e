"""fastreader rerank."""

import json

import pytest
from helpers.commands import run
from helpers.support import QUESTIONS

import fastreader as fr


@pytest.fixture
def questions(tmp_path):
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(QUESTIONS.read_text().splitlines(keepends=True)[:3]))
    return file


def test_rows_are_those_of_the_call(model, questions):
    done = run("rerank", questions, "-m", model, "-f", "jsonl", "-n", 2)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    reader = fr.Reader.load(model)
    examples = fr.load_examples(questions)
    for row, ranking in zip(rows, fr.rerank(reader, examples, top_n=2), strict=True):
        assert row["id"] == ranking.id and [r["index"] for r in row["results"]] == ranking.indices
        assert [r["value"] for r in row["results"]] == pytest.approx([r.value for r in ranking], abs=1e-4)
    table = run("rerank", questions, "-m", model, "--limit", 1).stdout
    assert "relevance" in table and "tokens computed" in table


def test_a_run_for_trec(model, questions):
    lines = run("rerank", questions, "-m", model, "-f", "trec", "--limit", 2).stdout.splitlines()
    for example in fr.load_examples(questions)[:2]:
        own = [line.split() for line in lines if line.startswith(f"{example.id} ")]
        assert [int(line[3]) for line in own] == list(range(1, len(example.passages) + 1))
        scores = [float(line[4]) for line in own]
        assert scores == sorted(scores, reverse=True) and own[0][5] == "fastreader-query_likelihood"


def test_it_resumes_and_names_what_fails(model, questions, tmp_path):
    out = tmp_path / "out.jsonl"
    run("rerank", questions, "-m", model, "-o", out, "--limit", 1)
    run("rerank", questions, "-m", model, "-o", out, "--resume")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in rows if "id" in row] == [example.id for example in fr.load_examples(questions)]
    told = run("rerank", questions, "-m", model, "--method", "best", expect=2).stderr
    assert "--method: expected one of query_likelihood, relevance, yes_no, moi" in told
    told = run("rerank", questions, "-m", model, "--method", "moi", expect=2).stderr
    assert "needs a calibration" in told and "id " in told
    told = run("rerank", questions, "-m", model, "--method", "moi", "--skip-errors", expect=3).stderr
    assert "3 skipped" in told
