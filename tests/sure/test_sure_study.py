"""The study's script: its rows, a run killed in the middle and continued, failures, and the table by hand."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from sure_readers import TokenReader, script

from fastreader.errors import ContextOverflowError, InputError

ROWS = ["base", "no_retrieval", "sure", "sure@1", "sure+mode=generate", "sure+k=3", "base_few_shot+shots=1", "replug"]


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "studies"))
    monkeypatch.setattr("fastreader.sure.variants.per_passage._loaded", lambda name: encoder)
    return importlib.import_module("sure_study")


def encoder(texts):
    import numpy as np

    return np.ones((len(texts), 1), dtype=np.float32)


@pytest.fixture
def data(tmp_path):
    """Four questions of three passages, of which the last is for the examples."""
    file = tmp_path / "data.jsonl"
    rows = [
        {
            "id": f"q{i}",
            "question": f"Question {i}?",
            "answers": ["the Nile", "Nile"],
            "ctxs": [{"title": f"T{j}", "text": f"Fact {j} of {i}."} for j in range(3)],
        }
        for i in range(4)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def other(stage, prompt, i):
    """Answer right for questions 0 and 1, and without passages never."""
    if stage == "validity":
        return "True"
    if stage == "ranking":
        return "Passage 1"
    if "Answer: the Nile" in prompt:
        return "Nile by example"
    return "The Nile!" if "Fact" in prompt and "Question 2?" not in prompt else "the Seine"


def reader(**rules):
    made = TokenReader(**{**script(other=other), **rules})
    rate = made.rate
    made.rate = lambda context, label: -1.0 if "Task description" in context else rate(context, label)
    return made


def run(study, monkeypatch, made, *arguments):
    monkeypatch.setattr(study.Reader, "load", lambda name, **options: made)
    monkeypatch.setattr(sys, "argv", ["sure_study.py", *map(str, arguments)])
    study.main()


def test_the_table_by_hand(study, monkeypatch, data, tmp_path, capsys):
    table = tmp_path / "table.md"
    arguments = (data, "--output", tmp_path / "out.jsonl", "--questions", 3, "--table", table, "--methods", *ROWS)
    run(study, monkeypatch, reader(), *arguments)
    lines = table.read_text().splitlines()
    rows = {line.split(" | ")[0][2:]: line.split(" | ") for line in lines[2 : 2 + len(ROWS)]}
    assert list(rows) == ROWS
    assert rows["base"][1:3] == ["3", "66.7 [0.0, 100.0]"]  # right, right, wrong
    assert rows["base"][5] == "-"
    assert rows["no_retrieval"][2:4] == ["0.0 [0.0, 0.0]", "0.0 [0.0, 0.0]"]
    assert rows["no_retrieval"][5].startswith("-66.7 [-100.0, ")
    assert rows["sure"][2] == rows["sure@1"][2] == "100.0 [100.0, 100.0]"
    assert rows["sure"][5].startswith("+33.3 [+0.0, ")
    # "Nile by example" against "Nile": no exact match, contained, F1 of precision 1/3 and recall 1
    assert rows["base_few_shot+shots=1"][2:5] == ["0.0 [0.0, 0.0]", "50.0 [50.0, 50.0]", "100.0 [100.0, 100.0]"]
    assert "questions by their number of candidates: 2: 3; 3 of 3 votes were ties" in lines[-1]
    assert int(rows["sure"][6].replace(",", "")) > int(rows["sure"][7].split(" ")[0].replace(",", ""))
    capsys.readouterr()
    run(study, monkeypatch, reader(), "--output", tmp_path / "out.jsonl")
    assert capsys.readouterr().out == table.read_text()


class Killed(BaseException):
    """Raised as if the process were killed."""


@pytest.mark.parametrize("calls", [0, 1, 5, 9, 13])
def test_a_killed_study_resumes_with_the_stored_replies(study, monkeypatch, data, tmp_path, capsys, calls):
    arguments = ("--questions", 3, "--group", 2, "--methods", *ROWS)
    whole = reader()
    run(study, monkeypatch, whole, data, "--output", tmp_path / "whole.jsonl", *arguments)
    expected = capsys.readouterr().out
    output = tmp_path / "out.jsonl"
    first = reader()
    for name in ("generate", "loglikelihood"):
        monkeypatch.setattr(first, name, dying(getattr(first, name), first, calls))
    with pytest.raises(Killed):
        run(study, monkeypatch, first, data, "--output", output, *arguments)
    second = reader()
    run(study, monkeypatch, second, data, "--output", output, *arguments)
    assert capsys.readouterr().out == expected
    assert first.calls + second.calls == whole.calls
    assert not output.with_name("out.jsonl.steps").exists()


def dying(call, made, calls):
    def until(*arguments, **options):
        if len(made.calls) == calls:
            raise Killed
        return call(*arguments, **options)

    return until


def test_rows_are_added_to_a_finished_study(study, monkeypatch, data, tmp_path, capsys):
    output = tmp_path / "out.jsonl"
    run(study, monkeypatch, reader(), data, "--output", output, "--questions", 2, "--methods", "base")
    more = ("--questions", 3, "--methods", "base", "base_few_shot+shots=1", "sure+judge=another")
    run(study, monkeypatch, reader(), data, "--output", output, *more)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(rows) == 9
    judged = next(row for row in rows if row["id"] == "0/sure+judge=another")
    assert set(judged["readers"]) == {"all", "validity", "ranking"}


def test_an_answer_that_fails_is_left_out_and_tried_again(study, monkeypatch, data, tmp_path, capsys):
    output = tmp_path / "out.jsonl"
    arguments = (data, "--output", output, "--questions", 3, "--methods", "base", "sure")
    failing = reader()
    write = failing.write

    def fails(prompt, i):
        if "Question 1?" in prompt and "Prediction" in prompt:
            raise ContextOverflowError("too long")
        return write(prompt, i)

    failing.write = fails
    with pytest.raises(SystemExit, match="1 answers failed"):
        run(study, monkeypatch, failing, *arguments)
    printed = capsys.readouterr()
    assert "failed: 1/sure: too long" in printed.err
    assert "| base | 3 |" in printed.out and "| sure | 2 |" in printed.out
    again = reader()
    run(study, monkeypatch, again, *arguments)
    assert "| sure | 3 |" in capsys.readouterr().out
    assert again.calls[0] == ("generate", 2)  # the candidates were there


def test_nothing_yet(study, monkeypatch, tmp_path, capsys):
    run(study, monkeypatch, reader(), "--output", tmp_path / "out.jsonl")
    assert capsys.readouterr().out == "No answers yet.\n"


def test_invalid_arguments_are_rejected(study, monkeypatch, data, tmp_path):
    rows = importlib.import_module("lib.sure_rows")
    assert all(rows.parse_row(name).name == name for name in rows.ROWS)
    for name, message in (
        ("magic", "method: expected one of"),
        ("sure+depth=3", r"settings: expected .*, got \['depth'\]"),
        ("sure+k=0", "k: expected an integer"),
        ("sure+generate", r"expected \+NAME=VALUE"),
        ("sure_few_shot", r"as sure_few_shot\+shots=5"),
    ):
        with pytest.raises(InputError, match=message):
            rows.parse_row(name)
    output = tmp_path / "out.jsonl"
    with pytest.raises(SystemExit, match="the last 1 of 4 questions are shown with their answers; at most 3"):
        run(study, monkeypatch, reader(), data, "--output", output, "--methods", "base_few_shot+shots=1")
