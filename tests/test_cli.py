import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from support import byte_tokenizer, tiny_llama

from fastreader import PermutationScores
from fastreader.jsonl import iter_results


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_llama().save_pretrained(folder)
    byte_tokenizer(chat=True).save_pretrained(folder)
    return str(folder)


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


COMMAND = [sys.executable, "-m", "fastreader.cli"]


def run(*arguments, expect=0):
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == expect, done.stderr
    return done


def test_one_question_as_a_table(model):
    done = run("score", "-m", model, "-q", "What?", "-p", "This.", "-p", "That.", "-c", "one", "-c", "two")
    assert "one" in done.stdout and "2 1" in done.stdout
    assert "Most likely" in done.stdout and "saved" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("format_", ["json", "jsonl"])
def test_a_file_to_standard_output(model, questions, format_):
    done = run("score", questions, "-m", model, "--limit", 3, "--format", format_)
    rows = json.loads(done.stdout) if format_ == "json" else [json.loads(line) for line in done.stdout.splitlines()]
    assert [PermutationScores.from_dict(row).question[-2:] for row in rows] == ["0?", "1?", "2?"]
    assert done.stderr == ""


def test_output_and_resume_with_other_settings(model, questions, tmp_path):
    out = tmp_path / "scores.jsonl"
    run("score", questions, "-m", model, "-o", out, "--limit", 5)
    again = run("score", questions, "-m", model, "-o", out, expect=2)
    assert "resume" in again.stderr
    other = run("score", questions, "-m", model, "-o", out, "--resume", "--seed", 3, expect=2)
    assert "seed" in other.stderr
    run("score", questions, "-m", model, "-o", out, "--resume")
    assert [r["id"] for r in iter_results(out)] == [str(i) for i in range(12)]


def test_killed_at_any_moment_and_resumed(model, questions, tmp_path):
    """SIGKILL while writing, five times; in the end exactly one result for each example."""
    out = tmp_path / "scores.jsonl"
    command = [*COMMAND, "score", str(questions), "-m", model, "-o", str(out), "--resume", "--max-tokens", "200"]
    generator = random.Random(0)
    killed = 0
    for _ in range(5):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = out.stat().st_size if out.exists() else 0
        while process.poll() is None and (not out.exists() or out.stat().st_size <= before):
            time.sleep(0.002)
        time.sleep(generator.random() * 0.05)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
        if len(list(iter_results(out))) == 12:
            break
    assert killed
    done = run(*command[len(COMMAND) :])
    assert "12 in" in done.stderr
    assert sorted((r["id"] for r in iter_results(out)), key=int) == [str(i) for i in range(12)]


def test_broken_lines_are_named_or_skipped(model, questions):
    lines = questions.read_text().splitlines()
    lines[1] = '{"question": '
    del_key = json.loads(lines[3])
    del del_key["ctxs"]
    lines[3] = json.dumps(del_key)
    questions.write_text("\n".join(lines[:6]) + "\n")
    assert "line 2" in run("score", questions, "-m", model, expect=2).stderr
    done = run("score", questions, "-m", model, "--format", "jsonl", "--skip-errors", expect=3)
    assert len(done.stdout.splitlines()) == 4
    assert "line 2" in done.stderr and "line 4" in done.stderr and "2 skipped" in done.stderr


def test_examples_that_cannot_be_scored_are_skipped(model, questions):
    row = json.loads(questions.read_text().splitlines()[0])
    rows = [row, {**row, "candidates": []}, {**row, "id": "again"}, {**row, "id": "again"}]
    questions.write_text("".join(json.dumps(r) + "\n" for r in rows))
    done = run("score", questions, "-m", model, "-f", "jsonl", "--skip-errors", expect=3)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["0", "again", "again#2"]
    assert "at least one candidate" in done.stderr


def test_cost_runs_nothing(model, questions):
    assert "12 questions" in run("score", questions, "-m", model, "--cost").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "file or --question"),
        (["--question", "x", "-p", "y"], "at least one candidate"),
        (["--question", "x", "-c", "y"], "at least one passage"),
        (["--question", "x", "-p", "y", "-c", "z", "--permutations", "sideways"], "sideways"),
        (["--question", "x", "-p", "y", "-c", "z", "--resume"], "--output"),
        (["absent.jsonl"], "absent.jsonl"),
    ],
)
def test_bad_input_is_one_line_on_standard_error(model, arguments, message):
    done = run("score", "-m", model, *arguments, expect=2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


def test_a_full_disk_loses_nothing_computed_before(model, questions, tmp_path):
    out = tmp_path / "scores.jsonl"
    run("score", questions, "-m", model, "-o", out, "--limit", 2)
    two = out.read_bytes()
    limit = len(two) + 500
    code = (
        f"import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "from fastreader.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "score", str(questions), "-m", model, "-o", str(out), "--resume"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "2 before it are intact" in done.stderr
    assert out.read_bytes() == two


def test_models_and_info(tmp_path):
    cache = ["--cache-dir", tmp_path]
    assert "smollm2-135m" in run("models", "list", *cache).stdout
    assert "models pull" in run("models", "path", "smollm2-135m", *cache, expect=2).stderr
    assert "smollm2-135m" in run("models", "path", "nonesuch", *cache, expect=2).stderr
    facts = json.loads(run("info", "--format", "json").stdout)
    assert facts["version"]["torch"] and facts["operators"]["tree_attention"]
    assert "tree_attention" in run("info").stdout


def test_help_teaches():
    text = run("score", "--help").stdout
    for word in ("--permutations", "cyclic", "--resume", "fastreader score questions.jsonl"):
        assert word in text
    assert run("--version").stdout.startswith("fastreader ")


def test_reading_and_ordering_import_no_torch():
    code = (
        "import sys, fastreader, fastreader.data, fastreader.permutations, fastreader.tree, fastreader.cli\n"
        "fastreader.load_examples, fastreader.Passage\n"
        "assert not {'torch', 'transformers', 'triton'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})
