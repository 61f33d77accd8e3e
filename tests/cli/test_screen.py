"""What people read holds no control character of the data. What programs read is unchanged."""

import io
import json
import logging
import sys

import pytest
from helpers.commands import run
from rich.console import Console
from rich.table import Table

from fastreader.cli.screen import Screen, Text, escaped, say

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08\u202egnp\u2066 [bold]plain"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08\u202egnp\u2066 [bold]plain"


def hostile(text):
    """The control characters in a text, without tab and newline."""
    return {c for c in text if not (c.isprintable() or c in "\t\n")}


def test_control_characters_are_escaped_and_other_text_is_not():
    assert escaped(HOSTILE) == SHOWN
    for text in ("naïve ½ 日本語 \t tab\nline 👩‍👩‍👧 עברית", ""):
        assert escaped(text) == text
    assert escaped("\udcff\x85\x7f") == r"\udcff\x85\x7f"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_screen_escapes_whatever_it_prints(terminal):
    table = Table("head")
    table.add_row(Text(HOSTILE))
    table.add_row(Text("Answer: ").append(HOSTILE, "bold"))
    out = io.StringIO()
    Screen(file=out, width=200, force_terminal=terminal, color_system=None).print(table, HOSTILE, markup=False)
    shown = out.getvalue()
    assert shown.count(SHOWN) == 2  # of the third, rich drops some controls itself
    assert not hostile(shown.replace("\x1b[1m", "").replace("\x1b[0m", ""))
    raw = io.StringIO()
    Console(file=raw, width=200).print(HOSTILE, markup=False)
    assert hostile(raw.getvalue())  # what rich itself lets through


@pytest.fixture
def attack(questions):
    """Questions, titles, passages, candidates and answers that hold escape sequences."""
    rows = [json.loads(line) for line in questions.read_text().splitlines()[:2]]
    for row in rows:
        row["question"] = HOSTILE + row["question"]
        row["candidates"] = [HOSTILE + c for c in row["candidates"]]
        row["answers"] = row["candidates"][:1]
        for passage in row["ctxs"]:
            passage["title"], passage["text"] = HOSTILE, HOSTILE + passage["text"]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return questions


@pytest.mark.parametrize(
    "command",
    [
        ["score"],
        ["rerank"],
        ["ask", "--method", "sure", "--mode", "generate", "--max-summary-tokens", "4", "--explain"],
        ["ask", "--method", "moi"],
        ["ask", "--explain"],
    ],
    ids=lambda command: "_".join(command[:3]),
)
def test_tables_hold_no_control_character(model, attack, command):
    name, *options = command
    done = run(name, attack, "-m", model, *options)
    assert not hostile(done.stdout) and not hostile(done.stderr)
    assert r"\x1b]0;owned" in done.stdout


def test_json_is_unchanged(model, attack):
    done = run("score", attack, "-m", model, "-f", "jsonl")
    assert [json.loads(line)["question"][: len(HOSTILE)] for line in done.stdout.splitlines()] == [HOSTILE] * 2


def test_tables_of_votes_and_calibrations(model, attack, tmp_path):
    votes = tmp_path / "votes.jsonl"
    row = {"id": HOSTILE, "question": HOSTILE, "predictions": {"A": HOSTILE, HOSTILE: HOSTILE}, "answers": ["x"]}
    votes.write_text(json.dumps(row) + "\n")
    done = run("vote", votes)
    assert not hostile(done.stdout) and r"\x1b" in done.stdout
    assert not hostile(run("vote", tmp_path / f"{HOSTILE.replace('/', '')}.jsonl", expect=2).stderr)


def test_messages_hold_no_control_character(model, attack, tmp_path):
    rows = [json.loads(line) for line in attack.read_text().splitlines()]
    rows[0] |= {"id": HOSTILE, "candidates": []}
    attack.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for options, code in (((), 2), (("--skip-errors",), 3)):
        said = run("score", attack, "-m", model, *options, expect=code).stderr
        assert not hostile(said) and said.count("\n") == (1 if code == 2 else 2)
    named = tmp_path / "\x1b[31mred.jsonl"
    assert not hostile(run("score", named, "-m", model, expect=2).stderr)
    trec = run("rerank", attack, "-m", model, "-f", "trec", expect=2)
    assert "without white space and control characters" in trec.stderr and trec.stdout == ""


def test_lines_on_standard_error(capsys):
    say(HOSTILE, "error: ")
    assert capsys.readouterr().err == f"error: {SHOWN}\n"


def test_log_messages(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers.clear()
    try:
        run("models", "list")
        (handler,) = root.handlers
        assert handler.format(logging.LogRecord("x", logging.WARNING, "", 0, HOSTILE, None, None)) == SHOWN
    finally:
        root.handlers[:] = before
