"""The command `fastreader ask` and its output."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from unittest import mock

import pytest
from helpers import commands
from helpers.scripted import ScriptedReader
from rich.console import Console
from sure_readers import script

from fastreader import sure
from fastreader.cli.asking import Answer
from fastreader.cli.tables.sure import explain
from fastreader.errors import ContextOverflowError

ONE = ("-q", "Which river is in Cairo?", "-p", "The Nile is in Cairo.", "-p", "The Seine is in Paris.")


def rendered(part) -> str:
    console = Console(width=120, file=io.StringIO())
    console.print(part)
    return console.file.getvalue()


def answered(**rules):
    return sure.answer(ScriptedReader(**script(**rules)), "Which [river] is in Cairo?", ["The Nile is in Cairo."])


def test_an_explanation_shows_every_stage():
    text = rendered(
        explain(
            answered(
                valid=lambda c: 2.0 if "Nile" in c else -2.0, better=lambda first, _: 3.0 if "Nile" in first else -3.0
            )
        )
    )
    for part in (
        "Question: Which [river] is in Cairo?",
        "Answer:   the Nile",
        "Method:   sure, 1 passages, read by scripted",
        "read from the form",
        "'(a) the Nile, (b) the Seine'",
        "1 (88% True)",
        "0 (12% True)",
        "(a) against (b): (a) in both orders ((a) first: (a) 95%; (b) first: (a) 95%)",
        "Summary for (a) the Nile  the rationale",
        "  about the Nile",
        "Summary for (b) the Seine",
    ):
        assert part in text
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if line.startswith("│")}
    assert set(rows) == {"candidates", "summaries", "validity", "ranking", "all"}


def test_an_explanation_shows_what_went_wrong():
    text = rendered(explain(answered(candidates="Paris, Paris")))
    assert "no letters; split at commas" in text
    assert "Note: candidates: 'Paris' appears twice and counts once" in text
    assert "Note: there is only one candidate; it wins without a vote" in text
    nothing = rendered(explain(answered(candidates="")))
    assert "Answer:   (none)" in nothing
    assert "none in the reply" in nothing


def test_order_bias_is_shown():
    text = rendered(explain(answered(better=lambda first, second: 5.0)))
    assert "(a) against (b): no verdict ((a) first: (a) 99%; (b) first: (b) 99%)" in text


def test_another_methods_details_are_shown():
    result = sure.ask(ScriptedReader(write=lambda p, i: "Nile"), "Which?", ["A text."], method="selection_inference")
    text = rendered(explain(result))
    assert "Answers\n  1. Nile" in text
    assert "Passages used\n  1" in text


def test_one_line():
    assert rendered(Answer(answered().to_dict(), None).line()) == "Which [river] is in Cairo?\n  the Nile\n"
    assert "(no answer)" in rendered(Answer(answered(candidates="").to_dict(), None).line())


def test_an_answer_is_right_or_wrong_where_the_right_ones_are_known():
    answer = Answer(answered().to_dict(), None, ["Nile", "the river Nile"])
    assert rendered(answer.line()).endswith("\n  the Nile  right\n")
    assert rendered(replace(answer, answers=["the Seine", "Seine"]).line()).endswith(
        "wrong; right: the Seine / Seine\n"
    )
    nothing = Answer(answered(candidates="").to_dict(), None, ["Nile"])
    assert nothing.right is False and Answer(nothing.row, None).right is None


@pytest.fixture
def run(monkeypatch):
    """The command line with a reader by rules."""
    reader = ScriptedReader(**script(other=lambda stage, prompt, i: "an answer"))

    def run(*arguments, expect=0):
        with mock.patch("fastreader.reader.reader.Reader.load", lambda *a, **o: reader):
            done = commands.run("ask", *arguments, expect=expect, COLUMNS="120")
        done.reader = reader
        return done

    return run


def test_the_base_of_sure(run):
    assert run(*ONE, "--method", "sure:base").stdout == "Which river is in Cairo?\n  an answer\n"


def test_sure_explained(run):
    text = run(*ONE, "--method", "sure", "--explain").stdout
    assert "Summary for (a) the Nile" in text


def test_json_is_the_whole_result(run):
    (row,) = json.loads(run(*ONE, "--method", "sure", "-k", "3", "-f", "json").stdout)
    result = sure.SureResult.from_dict(row)
    assert result.answer == "the Nile"
    assert "2 of the 3 candidates" in result.notes[0]


@pytest.fixture
def questions(tmp_path):
    file = tmp_path / "questions.jsonl"
    rows = [{"question": f"Question {i}?", "answers": ["x"], "ctxs": [{"id": 1, "text": "A fact."}]} for i in range(4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_file_with_output_and_resume(run, questions, tmp_path):
    output = tmp_path / "out.jsonl"
    first = run(questions, "--method", "sure", "-o", output, "--limit", "2")
    assert first.stdout == ""
    assert "2 answers in" in first.stderr
    asked = len(first.reader.prompts)
    run(questions, "--method", "sure", "-o", output, "--resume")
    assert len(first.reader.prompts) == 2 * asked
    assert [json.loads(line)["id"] for line in output.read_text().splitlines()] == ["0", "1", "2", "3"]


def test_a_question_that_fails_is_skipped_and_named(run, questions):
    reader = run(*ONE, "--method", "sure:base").reader
    calls = []
    write = reader.write

    def failing(prompt, i):
        if "Question 3" in prompt:
            raise ContextOverflowError("too long")
        calls.append(prompt)
        return write(prompt, i)

    reader.write = failing
    text = run(questions, "--method", "sure:base", "-f", "json", "--skip-errors", expect=3)
    assert [row["id"] for row in json.loads(text.stdout)] == ["0", "1", "2"]
    assert "questions.jsonl, line 4: too long" in text.stderr


def test_a_question_the_method_cannot_answer_is_skipped_and_named(run, questions):
    rows = questions.read_text().splitlines()
    questions.write_text("\n".join([rows[0], json.dumps({**json.loads(rows[1]), "answers": []}), rows[2]]) + "\n")
    text = run(questions, "--method", "sure:oracle", "-f", "json", "--skip-errors", expect=3)
    assert [row["id"] for row in json.loads(text.stdout)] == ["0", "2"]
    assert "questions.jsonl, line 2: oracle needs answers; the question has none" in text.stderr


def test_answered_questions_are_shown(run, questions, tmp_path):
    shots = tmp_path / "shots.jsonl"
    row = {"question": "Who wrote Faust?", "answers": ["Goethe", "Johann"], "ctxs": [{"text": "Not shown."}]}
    shots.write_text(json.dumps(row) + "\n")
    done = run(questions, "--method", "sure:base_few_shot", "--shots", shots, "--limit", 1)
    assert "Question: Who wrote Faust?\nAnswer: Goethe\n" in done.reader.prompts[0]
    assert "Not shown" not in done.reader.prompts[0]
    shots.write_text(json.dumps({**row, "question": "Who?", "answers": []}) + "\n")
    failed = run(questions, "--method", "sure:base_few_shot", "--shots", shots, expect=2)
    assert "has no answer for the question 'Who?'" in failed.stderr
    failed = run(questions, "--method", "sure:sure_few_shot", expect=2)
    assert "questions.jsonl, line 1: sure_few_shot needs shots; the question has none" in failed.stderr


def test_how_passages_are_weighed_and_packed(run, questions, tmp_path):
    calls, output = [], tmp_path / "out.jsonl"
    reader = run(*ONE, "--method", "sure:base").reader
    generate = reader.generate
    reader.generate = lambda prompts, **options: calls.append(len(prompts)) or generate(prompts, **options)
    options = ("--passage-weights", "equal", "--encoder", "x", "--batch-size", "2")
    run(questions, "--method", "sure:rerank", *options, "-o", output)
    row = json.loads(output.read_text().splitlines()[0])
    assert row["details"]["weights"] == [1.0] and row["method"] == "sure:rerank"
    assert (row["settings"]["options"]["weights"], row["settings"]["options"]["encoder"]) == ("equal", "x")
    assert calls == [2, 2]
    found = run(questions, "--method", "sure", "--candidates-prompt", "passages_first", "-f", "json")
    assert json.loads(found.stdout)[0]["candidates_prompt"] == "passages_first"


@pytest.mark.parametrize(
    ("method", "option", "value", "users"),
    [
        (
            "moi",
            "--num-candidates",
            "3",
            "sure, sure:summaries, sure:ranking, sure:validity, sure:multiple_choice, sure:sure_few_shot, sure:oracle, "
            "sure:top1_",
        ),
        (
            "moi",
            "--mode",
            "generate",
            "sure, sure:ranking, sure:validity, sure:multiple_choice, sure:sure_few_shot, sure:selection_inference",
        ),
        ("moi", "--max-summary-tokens", "5", "sure, sure:summaries"),
        ("moi", "--shots", "file", "sure, sure:base, sure:no_retrieval"),
        ("sure", "--bias", "file", "moi, moi:matched, moi:descending, moi:paper, moi:paper-cyclic, "),
        ("base", "--bias", "file", "moi, "),
        (
            "base@5",
            "--order",
            "descending",
            "moi, moi:matched, moi:descending, moi:paper, moi:paper-cyclic, moi:paper-pruned, moi:paper-variable\n",
        ),
        ("base", "--num-candidates", "3", "sure, sure:summaries"),
        ("sure:chain_of_thought", "--shots", "file", "sure, sure:base"),
        ("sure", "--passage-weights", "equal", "sure:rerank, sure:replug\n"),
        ("sure:rerank", "--on-overflow", "drop_passages", "moi, moi:matched, moi:descending, sure, sure:base"),
    ],
)
def test_an_option_that_does_not_apply_to_the_method_is_rejected(run, method, option, value, users):
    said = run(*ONE, "--method", method, option, value, expect=2).stderr
    assert f"{option}: does not apply to --method {method.partition('@')[0]}, only to {users}" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "replug"), "unknown method 'replug'; did you mean 'sure:replug'?"),
        (("--method", "sure", "-k", "0"), "--num-candidates: expected an integer from 1 to 26, got 0"),
        (("--explain", "-f", "json"), "--explain: is for tables"),
        (("--resume",), "--resume: needs --output"),
    ],
)
def test_bad_options_are_named(run, arguments, message):
    assert message in run(*ONE, *arguments, expect=2).stderr
