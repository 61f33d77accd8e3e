import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from rich.console import Console
from support import byte_tokenizer, tiny_llama

from fastreader import PermutationScores, Reader, __version__, cli, scoring
from fastreader.jsonl import iter_results
from fastreader.report.tables import UNLIMITED, scores_table
from fastreader.tree import TreeStats


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


STATS = TreeStats(sequences=4, given=100, computed=50, scored=20)
COMMAND = [sys.executable, "-m", "fastreader.cli"]


ONE = ("-q", "What?", "-p", "This.", "-p", "That.", "-c", "one", "-c", "two")


def run(*arguments, expect=0, **environment):
    """The command line in this process, so that the heavy imports are paid once."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["fastreader", *map(str, arguments)]),
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
    assert code == expect, err.getvalue()
    return SimpleNamespace(stdout=out.getvalue(), stderr=err.getvalue())


@contextlib.contextmanager
def piped(content):
    """Standard input is a pipe with this in it."""
    before = os.dup(0)
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    os.dup2(reading, 0)
    os.close(reading)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)


def ids(path):
    return [row["id"] for row in iter_results(path)]


def made_up(texts, orders=((0, 1), (1, 0)), worst=-100.0):
    """Scores without a model."""
    loglik = np.linspace(worst, -1.0, len(orders) * len(texts)).reshape(len(orders), len(texts))
    return PermutationScores(
        question="What?",
        candidates=list(texts),
        permutations=np.array(orders),
        loglik=loglik,
        question_loglik=np.full(len(orders), -12.5),
        candidate_tokens=np.ones(len(texts), dtype=np.int64),
        question_tokens=3,
        passages_tokens=np.full(len(orders), 9),
        greedy=np.zeros(loglik.shape, dtype=bool),
        stats=STATS,
        seconds=0.5,
        reader={},
        design="cyclic",
        id="0",
    )


def test_one_question_as_a_table_in_a_process_of_its_own(model):
    done = subprocess.run([*COMMAND, "score", "-m", model, *ONE], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("What?\n")
    assert "one" in done.stdout and "2 1" in done.stdout
    assert "Most likely" in done.stdout and "saved" in done.stdout
    assert done.stderr == ""


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


def test_output_and_resume_with_other_settings(model, questions, tmp_path, monkeypatch):
    out = tmp_path / "scores.jsonl"
    run("score", questions, "-m", model, "-o", out, "--limit", 5)
    assert "resume" in run("score", questions, "-m", model, "-o", out, expect=2).stderr
    for arguments, named in (
        (["--seed", 3], "seed"),
        (["--precision", "exact"], "precision"),
        (["-c", "yellow"], "'0' has a result already, made from another question"),
    ):
        other = run("score", questions, "-m", model, "-o", out, "--resume", *arguments, expect=2)
        assert named in other.stderr
    assert len(ids(out)) == 5
    monkeypatch.chdir(model)  # the same folder by another name
    run("score", questions, "-m", ".", "-o", out, "--resume")
    assert ids(out) == [str(i) for i in range(12)]


def test_resume_with_a_model_trained_since(questions, tmp_path):
    folder, out = tmp_path / "m", tmp_path / "scores.jsonl"
    byte_tokenizer(chat=True).save_pretrained(folder)
    tiny_llama().save_pretrained(folder)
    run("score", questions, "-m", folder, "-o", out, "--limit", 2)
    tiny_llama(seed=1).save_pretrained(folder)
    assert "other settings: revision" in run("score", questions, "-m", folder, "-o", out, "--resume", expect=2).stderr
    assert len(ids(out)) == 2
    tiny_llama().save_pretrained(folder)
    run("score", questions, "-m", folder, "-o", out, "--resume")
    assert len(ids(out)) == 12


def test_resume_when_the_file_has_changed(model, questions, tmp_path):
    """Lines mended or appended later are scored; a line that was scored and is another one now is an error."""
    out = tmp_path / "scores.jsonl"
    lines = questions.read_text().splitlines()
    resume = ["score", questions, "-m", model, "-o", out, "--resume"]
    questions.write_text("\n".join([*lines[:4], '{"question": ', *lines[5:8]]))
    assert "line 5" in run(*resume, expect=2).stderr
    assert ids(out) == ["0", "1", "2", "3"]
    questions.write_text("\n".join(lines))
    assert "8 scored now, 12 in" in run(*resume).stderr
    before = out.read_bytes()
    for old, new in (("Number 3", "Number three"), ("colour is number 3", "color is number 3"), ("blue", "cyan")):
        questions.write_text("\n".join([*lines[:3], lines[3].replace(old, new), *lines[4:]]))
        assert "'3' has a result already, made from another question" in run(*resume, expect=2).stderr
    assert out.read_bytes() == before


def test_resume_sees_scores_that_tell_how_much_is_read(model, questions, tmp_path):
    """Under a share, and only there; marks and right answers do not touch what is scored."""
    rows = [json.loads(line) for line in questions.read_text().splitlines()[:1]]
    for score, row in enumerate(rows[0]["ctxs"]):
        row["score"] = 5 * score
    before = json.dumps(rows[0])
    after = before.replace('"score": 5', '"score": 0.5')
    assert after != before
    for arguments, refused in ((("--prune", 0.9), True), (("--prune", 1), False)):
        out = tmp_path / f"{refused}.jsonl"
        questions.write_text(before)
        run("score", questions, "-m", model, "-o", out, *arguments)
        questions.write_text(after.replace('"answers": ["blue"]', '"answers": ["red"]'))
        done = run("score", questions, "-m", model, "-o", out, *arguments, "--resume", expect=2 if refused else 0)
        assert ("'0' has a result already, made from another question" in done.stderr) is refused


def test_resume_of_one_question(model, tmp_path):
    out = tmp_path / "scores.jsonl"
    run("score", "-m", model, *ONE, "-o", out)
    assert "0 scored now, 1 in" in run("score", "-m", model, *ONE, "-o", out, "--resume").stderr
    other = ["Who?" if a == "What?" else a for a in ONE]
    assert "another question" in run("score", "-m", model, *other, "-o", out, "--resume", expect=2).stderr
    assert len(ids(out)) == 1


def test_output_destroys_nothing(model, questions, tmp_path):
    """Whatever is no result of ours stays, and a run that cannot begin leaves no file behind."""
    notes, out = tmp_path / "notes", tmp_path / "scores.jsonl"
    notes.write_text("notes")
    questions.write_text(questions.read_text().rstrip("\n"))
    before = questions.read_text()
    same = tmp_path / "link.jsonl"
    same.symlink_to(questions)
    packed = tmp_path / "scores.jsonl.gz"
    for arguments, message in (
        (["-m", model, "-o", notes], "no result cut short"),
        (["-m", model, "-o", questions], "file of the questions"),
        (["-m", model, "-o", same], "file of the questions"),
        (["-m", model, "-o", packed], "plain JSON lines"),
        (["-m", model, "-o", out, "-f", "json"], "--format"),
        (["-m", tmp_path / "nothing", "-o", out], "nothing"),
    ):
        assert message in run("score", questions, *arguments, "--resume", expect=2).stderr
    assert notes.read_text() == "notes" and questions.read_text() == before
    assert not out.exists() and not packed.exists()


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
    assert "12 in" in run(*command[len(COMMAND) :]).stderr
    assert sorted(ids(out), key=int) == [str(i) for i in range(12)]


def test_broken_lines_are_named_or_skipped(model, questions):
    lines = questions.read_text().splitlines()
    lines[1] = '{"question": '
    del_key = json.loads(lines[3])
    del del_key["ctxs"]
    lines[3] = json.dumps(del_key)
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
    questions.write_text("".join(json.dumps(r) + "\n" for r in rows))
    stopped = run("score", questions, "-m", model, "-f", "jsonl", expect=2)
    assert [json.loads(line)["id"] for line in stopped.stdout.splitlines()] == ["0"]
    done = run("score", questions, "-m", model, "-f", "jsonl", "--skip-errors", expect=3)
    found = [json.loads(line)["id"] for line in done.stdout.splitlines()]
    assert found == ["0", "a", "a#2", "a#2#2", "a#3", "b#2", "b", "b#3"]
    assert "at least one candidate" in done.stderr and "1 skipped" in done.stderr
    done = run("score", questions, "-m", model, "--cost", "--skip-errors", expect=3)
    assert done.stdout.startswith("8 questions") and "1 skipped" in done.stderr
    assert "id 1: " in run("score", questions, "-m", model, "--cost", expect=2).stderr


def test_cost_runs_nothing(model, questions):
    assert "12 questions" in run("score", questions, "-m", model, "--cost").stdout


def test_cost_of_what_is_left(model, questions, tmp_path):
    out = tmp_path / "scores.jsonl"
    common = ("score", questions, "-m", model, "-o", out)
    assert "12 questions" in run(*common, "--cost", "--resume").stdout
    assert not out.exists()
    run(*common, "--limit", 5)
    before = out.read_bytes()
    assert "7 questions" in run(*common, "--cost", "--resume").stdout
    assert "12 questions" in run(*common, "--cost").stdout
    assert "seed" in run(*common, "--cost", "--resume", "--seed", 3, expect=2).stderr
    assert out.read_bytes() == before


def test_a_score_that_is_no_number_is_not_written_as_json(monkeypatch):
    monkeypatch.setattr(Reader, "load", lambda *_, **__: None)
    good, bad = made_up(["one"]), made_up(["one"])
    bad.loglik[0, 0] = -np.inf
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
        (["--question", "x", "-p", "y", "-c", "z", "--prune", "0.5"], "score of every passage"),
        (["--question", "x", "-p", "y", "-c", "z", "--prune", "nan"], "--prune: expected a number of places, or a"),
        (["--question", "x", "-p", "y", "-c", "z", "--prune", "2.5"], "--prune: expected a number of places, or a"),
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
    assert facts["version"]["torch"] and any("tree_attention" in name for name in facts["operators"])
    printed = run("info").stdout
    assert "tree_attention" in printed and "layer_in, layer_out" in printed


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


def shown(scores, width):
    out = io.StringIO()
    Console(width=UNLIMITED, file=out).print(scores_table(scores, width))
    return out.getvalue()


def test_tables_cut_no_number():
    scores = made_up([f"candidate number {k} of the list" for k in range(8)], worst=-12345.67)
    numbers = [f"{value:.2f}" for value in scores.loglik.ravel()]
    piped = shown(scores, None)
    assert piped.startswith("What?\n")
    assert all(number in piped for number in numbers) and "not shown" not in piped
    for width in (40, 80, 120):
        text = shown(scores, width)
        table = text[: text.index("Log-likelihoods")].splitlines()
        box = [line for line in table if line[0] in "┏┃┡│├└"]
        assert max(map(len, box)) <= width
        head = next(line for line in box if line.startswith("┃"))
        count = head.count("┃") - 3
        assert 1 <= count < 8 and f"{8 - count} more candidates" in text
        assert numbers[-1] in text and numbers[7] in text  # of the largest share, which is the last
        assert "…" not in "".join(line for line in box if line.startswith("│"))


def test_tables_of_many_candidates_and_passages():
    many = made_up([f"c{k}" for k in range(20)], orders=[list(range(30))])
    text = shown(many, 160)
    assert "12 more candidates" in text and "c19" in text and "c12" in text and "c11" not in text
    text = shown(many, 80)  # the reading order is folded, the numbers are not
    assert "16 more candidates" in text and "c16" in text and "c15" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "│ 22 23 24 25 26 27 28 29 30 │" in text
    assert "question" in shown(made_up([]), 80)
    assert "two lines" in shown(made_up(["two\nlines"]), 80)


def test_a_terminal_gets_a_table_that_fits(monkeypatch):
    many = made_up([f"candidate {k}" for k in range(30)])
    monkeypatch.setattr(Reader, "load", lambda *_, **__: None)
    monkeypatch.setattr(scoring, "score_permutations", lambda *_, **__: iter([many]))
    assert "22 more candidates" in run("score", *ONE, COLUMNS="40").stdout
    assert "28 more candidates" in run("score", *ONE, COLUMNS="70", FORCE_COLOR="1", NO_COLOR="1").stdout


def test_reading_and_ordering_import_no_torch():
    code = (
        "import sys, fastreader, fastreader.data, fastreader.permutations, fastreader.tree, fastreader.cli\n"
        "fastreader.load_examples, fastreader.Passage\n"
        "assert not {'torch', 'transformers', 'triton'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})


def test_it_runs_as_a_module(tmp_path):
    command = [sys.executable, "-m", "fastreader"]
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"fastreader {__version__}\n"
    failed = subprocess.run([*command, "score", str(tmp_path / "none.jsonl")], capture_output=True, text=True)
    assert failed.returncode == 2
    assert "none.jsonl" in failed.stderr
    assert "Traceback" not in failed.stderr
