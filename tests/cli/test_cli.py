import json
import os
import subprocess
import sys
import warnings
from unittest import mock

import numpy as np
import pytest
import typer
from helpers.commands import COMMAND, ONE, ids, made_up, piped, run
from rich.text import Text

from fastreader import PermutationScores, Reader, __version__, cli
from fastreader.cli import commands as commands_of_cli
from fastreader.data import SkippedRows
from fastreader.scoring import api as scoring


def test_one_question_as_a_table_in_a_process_of_its_own(model):
    done = subprocess.run([*COMMAND, "score", "-m", model, *ONE], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("What?\n")
    assert "one" in done.stdout and "2 1" in done.stdout
    assert "Most likely" in done.stdout and "saved" in done.stdout
    assert done.stderr == ""


def test_a_warning_for_users_is_a_line(monkeypatch):
    written = []

    def warns():
        written.extend(warnings.formatwarning("m", kind, "a.py", 3) for kind in (SkippedRows, DeprecationWarning))

    before = warnings.formatwarning
    monkeypatch.setattr(cli, "app", warns)
    cli.main()
    assert written == ["warning: m\n", "a.py:3: DeprecationWarning: m\n"] and warnings.formatwarning is before


@pytest.mark.parametrize("format_", ["json", "jsonl"])
def test_a_file_to_standard_output(model, questions, format_):
    done = run("score", questions, "-m", model, "--limit", 3, "--format", format_)
    rows = json.loads(done.stdout) if format_ == "json" else [json.loads(line) for line in done.stdout.splitlines()]
    assert [PermutationScores.from_dict(row).question[-2:] for row in rows] == ["0?", "1?", "2?"]
    assert done.stderr == ""


def test_standard_input_is_a_file(model, questions, tmp_path):
    out = tmp_path / "scores.jsonl"
    with piped(questions.read_bytes()):
        run("score", "-", "-m", model, "-o", out)
    assert ids(out) == [str(i) for i in range(12)]
    with piped(questions.read_bytes()):
        done = run("score", "/dev/stdin", "-m", model, "-f", "jsonl", "--limit", 2)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["0", "1"]
    with piped(b"[]"):
        assert "/dev/stdin" in run("score", "-", "-m", model, expect=2).stderr


def test_broken_lines_are_named_or_skipped(model, questions):
    lines = questions.read_text().splitlines()
    lines[1] = '{"question": '
    lines[3] = json.dumps(json.loads(lines[3]) | {"ctxs": 7})
    questions.write_text("\n".join(lines[:6]) + "\n")
    stopped = run("score", questions, "-m", model, "--format", "json", expect=2)
    assert "line 2" in stopped.stderr
    assert [row["id"] for row in json.loads(stopped.stdout)] == ["0"]  # what was read before is scored
    done = run("score", questions, "-m", model, "--format", "jsonl", "--skip-errors", expect=3)
    assert len(done.stdout.splitlines()) == 4
    assert "line 2" in done.stderr and "line 4" in done.stderr and "2 skipped" in done.stderr


def test_examples_that_cannot_be_scored_are_skipped(model, questions):
    row = json.loads(questions.read_text().splitlines()[0])
    rows = [row, {**row, "candidates": []}, *({**row, "id": name} for name in ("a", "a", "a#2", "a", "b#2", "b", "b"))]
    questions.write_text("\n" + "".join(json.dumps(r) + "\n" for r in rows))
    stopped = run("score", questions, "-m", model, "-f", "jsonl", expect=2)
    assert f"({questions}, line 3): " in stopped.stderr.replace("\n", "")  # it has no id
    assert [json.loads(line)["id"] for line in stopped.stdout.splitlines()] == ["0"]
    done = run("score", questions, "-m", model, "-f", "jsonl", "--skip-errors", expect=3)
    found = [json.loads(line)["id"] for line in done.stdout.splitlines()]
    assert found == ["0", "a", "a#2", "a#2#2", "a#3", "b#2", "b", "b#3"]
    assert "at least one candidate" in done.stderr and "1 skipped" in done.stderr
    done = run("score", questions, "-m", model, "--cost", "--skip-errors", expect=3)
    assert done.stdout.startswith("8 questions") and "1 skipped" in done.stderr
    questions.write_text(json.dumps({**row, "id": "c", "candidates": []}) + "\n")
    assert "id c: " in run("score", questions, "-m", model, "--cost", expect=2).stderr


def test_cost_runs_nothing(model, questions):
    assert "12 questions" in run("score", questions, "-m", model, "--cost").stdout


def test_a_score_that_is_no_number_is_not_written_as_json(monkeypatch):
    monkeypatch.setattr(Reader, "load", lambda *_, **__: None)
    good, bad = made_up(["one"]), made_up(["one"])
    bad.logprobs[0, 0] = -np.inf
    for format_ in ("json", "jsonl"):
        monkeypatch.setattr(scoring, "score_permutations", lambda *_, **__: iter([good, bad]))
        done = run("score", *ONE, "-f", format_, expect=2)
        assert "result '0' cannot be written as JSON" in done.stderr
        assert json.loads(done.stdout) == ([good.to_dict()] if format_ == "json" else good.to_dict())


def test_interrupted(monkeypatch):
    monkeypatch.setattr(Reader, "load", mock.Mock(side_effect=KeyboardInterrupt))
    assert "Traceback" not in run("score", *ONE, expect=130).stderr
    monkeypatch.setattr(cli, "app", mock.Mock(side_effect=KeyboardInterrupt))
    run("score", *ONE, expect=130)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "file or --question"),
        (["--question", "x", "-p", "y"], "at least one candidate"),
        (["--question", "x", "-c", "y"], "at least one passage"),
        (["--question", "x", "-p", "y", "-c", "z", "--permutations", "sideways"], "sideways"),
        (["--question", "x", "-p", "y", "-c", "z", "--prune-mass", "0.5"], "score of every passage"),
        (
            ["--question", "x", "-p", "y", "-c", "z", "--prune-mass", "nan"],
            "prune_mass: expected a finite number above 0",
        ),
        (
            ["--question", "x", "-p", "y", "-c", "z", "--prune-mass", "2.5"],
            "prune_mass: expected a finite number above 0",
        ),
        (["--question", "x", "-p", "y", "-c", "z", "--permutations", "random", "--seed", "-1"], "random: seed: exp"),
        (["--question", "x", "-p", "y", "-c", "z", "--resume"], "--output"),
        (["absent.jsonl"], "absent.jsonl"),
        (["absent.jsonl", "-o", "scores.jsonl"], "absent.jsonl"),
        (["--question", "\udcff", "-p", "y", "-c", "z"], "--question: expected text"),
        (["--question", "x", "-p", "\udcff", "-c", "z"], "--passage: expected text"),
        (["--question", "x", "-p", "y", "-c", "\udcff"], "--candidate: expected text"),
    ],
)
def test_bad_input_is_one_line_on_standard_error(model, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("score", "-m", model, *arguments, expect=2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1 and done.stdout == ""
    assert not list(tmp_path.iterdir())


def test_models_and_info(tmp_path):
    cache = ["--cache-dir", tmp_path]
    assert "smollm2-135m" in run("models", "list", *cache).stdout
    assert "models pull" in run("models", "path", "smollm2-135m", *cache, expect=2).stderr
    assert "smollm2-135m" in run("models", "path", "nonesuch", *cache, expect=2).stderr
    facts = json.loads(run("info", "--format", "json").stdout)
    assert facts["version"]["torch"] and any("tree_attention" in name for name in facts["operators"])
    assert "H200" in facts["on GPUs"]["kernels, passes, generation"]
    printed = run("info").stdout
    assert "tree_attention" in printed and "decoder_layer_in, decoder_layer_out" in printed


def test_help_teaches():
    text = run("score", "--help", COLUMNS="300").stdout
    for word in (
        "--permutations",
        "cyclic",
        "--resume",
        "fastreader score questions.jsonl",
        "fast (bfloat16 operands), high (split in two, near float32) or exact (float32).",
        "How weights are stored: auto",
    ):
        assert word in text
    assert run("--version").stdout.startswith("fastreader ")


def _helps(command):
    """Yield every text of a command's --help and of those below it."""
    yield command.help or ""
    yield from (parameter.help for parameter in command.params if getattr(parameter, "help", None))
    for below in getattr(command, "commands", {}).values():
        yield from _helps(below)


def test_no_help_is_read_as_markup():
    texts = list(_helps(typer.main.get_command(commands_of_cli.app)))
    assert len(texts) > 200
    assert [text for text in texts if Text.from_markup(text).plain != text] == []


def test_help_shows_defaults_that_are_worked_out():
    text = run("eor", "--help", COLUMNS="300").stdout
    for default in ("NAME@5 of every source, and ReFree", "exact and f1", "table", "on a terminal"):
        assert f"[default: ({default})]" in text


def test_reading_and_ordering_import_no_torch():
    code = (
        "import sys, fastreader, fastreader.data, fastreader.permutations, fastreader.core.tree, fastreader.cli\n"
        "fastreader.load_examples, fastreader.Passage\n"
        "assert not {'torch', 'transformers', 'triton'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})


def test_it_runs_as_a_module(tmp_path):
    command = [sys.executable, "-m", "fastreader"]
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"fastreader {__version__}\n"
    missing = [str(tmp_path / "none.jsonl"), str(tmp_path / "out.jsonl")]  # convert needs no torch
    failed = subprocess.run([*command, "convert", *missing], capture_output=True, text=True)
    assert failed.returncode == 2
    assert "none.jsonl" in failed.stderr
    assert "Traceback" not in failed.stderr
