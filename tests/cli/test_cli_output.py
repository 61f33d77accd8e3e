"""Files of results: what is written, resumed and refused."""

import contextlib
import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from unittest import mock

import pytest
from helpers.commands import COMMAND, ONE, ids, run
from helpers.forks import Forked
from helpers.support import byte_tokenizer, tiny_llama

from fastreader import cli
from fastreader.cli.inputs import check_output, check_writable
from fastreader.cli.options import OutputArguments
from fastreader.cli.output import write_trec
from fastreader.data import load_examples
from fastreader.data.arguments import keyed
from fastreader.data.result_log import iter_results
from fastreader.data.write import trec_lines
from fastreader.errors import InputError


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
    """Lines mended or appended later are scored. A line that was scored and is another one now is an error."""
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
    """Under a share, and only there. Marks and right answers do not touch what is scored."""
    rows = [json.loads(line) for line in questions.read_text().splitlines()[:1]]
    for score, row in enumerate(rows[0]["ctxs"]):
        row["score"] = 5 * score
    before = json.dumps(rows[0])
    after = before.replace('"score": 5', '"score": 0.5')
    assert after != before
    for arguments, refused in ((("--prune-mass", 0.9), True), (("--prune", 1), False)):
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


def test_cost_of_what_is_left(model, questions, tmp_path):
    out = tmp_path / "scores.jsonl"
    common = ("score", questions, "-m", model, "-o", out)
    assert "12 questions" in run(*common, "--cost", "--resume").stdout
    assert not out.exists()
    run(*common, "--limit", 5)
    with out.open("ab") as lines:
        lines.write(b'{"id": "torn')
    before = out.read_bytes()
    assert "7 questions" in run(*common, "--cost", "--resume").stdout
    assert "12 questions" in run(*common, "--cost").stdout
    assert "seed" in run(*common, "--cost", "--resume", "--seed", 3, expect=2).stderr
    assert out.read_bytes() == before


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
        (["-m", model, "-o", notes], "expected a result or the start of one"),
        (["-m", model, "-o", questions], "file of the questions"),
        (["-m", model, "-o", same], "file of the questions"),
        (["-m", model, "-o", packed], "plain JSON lines"),
        (["-m", model, "-o", out, "-f", "json"], "--format"),
        (["-m", tmp_path / "nothing", "-o", out], "nothing"),
    ):
        assert message in run("score", questions, *arguments, "--resume", expect=2).stderr
    assert notes.read_text() == "notes" and questions.read_text() == before
    assert not out.exists() and not packed.exists()


def test_an_output_without_a_folder_is_refused_before_the_model_loads(questions, tmp_path):
    done = run("score", questions, "-m", tmp_path / "no-model", "-o", tmp_path / "none" / "out.jsonl", expect=2)
    assert "--output:" in done.stderr and "no folder" in done.stderr


@pytest.mark.long
def test_nobody_reads_the_output_any_more(model, questions):
    command = [*COMMAND, "score", str(questions), "-m", model, "-f", "jsonl"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    _, told = process.communicate()
    assert (process.returncode, told) == (1, "")


def test_killed_at_any_moment_and_resumed(model, questions, tmp_path):
    """SIGKILL while writing, twice. In the end exactly one result for each example."""
    out = tmp_path / "scores.jsonl"
    command = ["score", questions, "-m", model, "-o", out, "--resume", "--max-batch-tokens", 200]
    generator = random.Random(0)
    killed = 0
    for _ in range(2):
        process = Forked(command)
        before = out.stat().st_size if out.exists() else 0
        while not process.ended() and (not out.exists() or out.stat().st_size <= before):
            time.sleep(0.002)
        time.sleep(generator.random() * 0.05)
        if not process.ended():
            process.kill(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        if len(list(iter_results(out))) == 12:
            break
    assert killed
    assert "12 in" in run(*command).stderr
    assert sorted(ids(out), key=int) == [str(i) for i in range(12)]


def test_a_full_disk_loses_nothing_computed_before(model, questions, tmp_path):
    out = tmp_path / "scores.jsonl"
    run("score", questions, "-m", model, "-o", out, "--limit", 2)
    two = out.read_bytes()
    limit = len(two) + 500

    def fill():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = Forked(("score", questions, "-m", model, "-o", out, "--resume"), fill)
    assert done.wait() == 1
    assert "2 earlier results are intact" in done.stderr
    assert out.read_bytes() == two


def test_a_file_that_is_gone_on_with_needs_no_folder_to_write_to(tmp_path, monkeypatch):
    there = tmp_path / "scores.jsonl"
    there.touch()
    resumed = OutputArguments(output=there, resume=True)
    monkeypatch.setattr(os, "access", lambda path, mode: path == there)
    check_output(resumed, None)
    with pytest.raises(InputError, match="cannot be written to"):
        check_output(OutputArguments(output=tmp_path / "new.jsonl", resume=True), None)
    with pytest.raises(InputError, match="cannot be written to"):
        check_writable("--plot", there)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match=r"scores.jsonl cannot be written to"):
        check_output(resumed, None)
    check_output(resumed, None, cost=True)


def test_near_scores_stay_apart_in_a_trec_run():
    lines = trec_lines("q", [("a", 0.30000002), ("b", 0.30000001)], "tag")
    assert lines == ["q Q0 a 1 0.30000002 tag\n", "q Q0 b 2 0.30000001 tag\n"]


def test_output_that_its_encoding_cannot_hold(tmp_path):
    row = '{"id": "東", "question": "Où ? 🖼", "note": "bad \\ud835", "nan": NaN, "ctxs": [{"id": "é", "text": "🖼"}]}'
    path = tmp_path / "q.jsonl"
    path.write_text(row + "\n", encoding="utf-8")
    for encoding in ("utf-8", "cp1252", "ascii", "utf-16"):
        with (
            contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding=encoding)) as out,
            mock.patch.object(sys, "argv", ["fastreader", "arrange", str(path)]),
            contextlib.suppress(SystemExit),
        ):
            cli.main()
        out.flush()
        found = json.loads(out.buffer.getvalue().decode(encoding))
        assert (found["question"], found["note"], found["nan"]) == ("Où ? 🖼", "bad \ud835", None)
    table = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    with contextlib.redirect_stdout(table), pytest.raises(InputError, match="ascii cannot hold 'q Q0 東"):
        write_trec(["q Q0 東 1 2.0 x\n"])


def test_the_next_command_reads_what_rerank_writes(model, questions, tmp_path):
    ranked, printed = tmp_path / "ranked.jsonl", tmp_path / "printed.jsonl"
    run("rerank", questions, "--model", model, "-o", ranked)
    printed.write_text(run("rerank", questions, "--model", model, "--format", "jsonl").stdout)
    given = load_examples(questions)
    for path in (ranked, printed):
        found = load_examples(path)
        for own, example in zip(found, keyed(given), strict=True):
            assert replace(own, passages=[]) == replace(example, passages=[])
            assert sorted(p.text for p in own.passages) == sorted(p.text for p in example.passages)
            assert own.passages == sorted(own.passages, key=lambda p: -p.score)
    run("ask", ranked, "--model", model, "--method", "base", "--limit", "1")
    run("score", ranked, "--model", model, "--question-only")


@pytest.mark.parametrize("command", ["score", "rerank", "moi", "ask", "conflicts"])
def test_a_file_that_holds_no_questions_is_an_error_before_the_model_loads(command, tmp_path):
    table = tmp_path / "questions.csv"
    table.write_text("id,question\n1,What?\n")
    with mock.patch("fastreader.reader.reader.Reader.load", side_effect=AssertionError("loaded")):
        assert "questions.csv" in run(command, table, expect=2).stderr
