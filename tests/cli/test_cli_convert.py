"""fastreader convert: which format it recognises, what it writes, and what it says is not kept."""

import json

import pytest
from helpers.commands import run

import fastreader as fr

MARCO = {"query": "q", "query_id": 7, "answers": ["a"], "passages": {"is_selected": [0, 1], "passage_text": ["t", "u"]}}
CRAG = {"query": "q", "answer": "", "search_results": [{"page_snippet": "s", "page_result": "<html>"}]}


def test_a_data_set_becomes_a_file_that_every_command_reads(tmp_path):
    source, output = tmp_path / "marco.json", tmp_path / "questions.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in [MARCO, MARCO | {"query_id": 8}]))
    done = run("convert", source, output)
    assert done.stderr.splitlines() == ["MS MARCO: 2 questions", "passages: 4", f"written: {output}"]
    assert fr.load_examples(output) == fr.load_examples(source)
    assert list(json.loads(output.read_text().splitlines()[0])) == ["id", "question", "answers", "ctxs"]
    assert "exists; --force replaces it" in run("convert", source, output, expect=2).stderr
    run("convert", source, output, "--force", "--limit", 1, "--format", "flashrag")
    assert fr.load_examples(output) == fr.load_examples(source, limit=1)
    assert "output" in output.read_text()


def test_one_split_of_a_file_that_holds_several(tmp_path):
    source, output = tmp_path / "asqa.json", tmp_path / "dev.jsonl"
    rows = {str(i): {"ambiguous_question": f"q{i}", "qa_pairs": [{"short_answers": ["a"]}]} for i in range(4)}
    source.write_text(json.dumps({"train": {"0": rows["0"]}, "dev": {k: rows[k] for k in "123"}}))
    run("convert", source, output, "--split", "dev", "--limit", 2)
    assert [example.question for example in fr.load_examples(output)] == ["q1", "q2"]
    failed = run("convert", source, tmp_path / "test.jsonl", "--split", "test", expect=2)
    assert "--split: expected one of the file's (train, dev), got 'test'" in failed.stderr
    assert not (tmp_path / "test.jsonl").exists()


def test_what_is_not_kept_is_said(tmp_path):
    source, output = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    source.write_text(json.dumps(CRAG) + "\n" + json.dumps({"question": "q", "answer": 3}) + '\n{"claim": "c"}\n')
    failed = run("convert", source, output, expect=2)
    assert "a.jsonl, line 2: answer: expected a text" in failed.stderr and not output.exists()
    done = run("convert", source, output, "--skip-errors", expect=3)
    for line in (
        "CRAG: 1 question",
        "FEVER: 1 question",
        "passages: 1",
        "without right answers: 2 questions",
        "without passages: 1 question",
        "not kept: page_result, the page's HTML, of which page_snippet is the text that was found",
        "1 skipped",
    ):
        assert line in done.stderr.splitlines()
    assert len(fr.load_examples(output)) == 2


@pytest.mark.parametrize("missing", ["absent.jsonl", "."])
def test_a_source_that_is_no_file_is_an_error(tmp_path, missing):
    failed = run("convert", tmp_path / missing, tmp_path / "b.jsonl", expect=2)
    assert failed.stderr.startswith(f"error: {tmp_path / missing}: ".replace("/.:", ":"))
