"""fastreader study and fastreader report."""

import json
import sys
from unittest import mock

import pytest
from helpers.scripted import ScriptedReader
from typer.testing import CliRunner

from fastreader import cli
from fastreader.errors import InputError
from fastreader.reader.reader import Reader
from fastreader.study import RunFolder, Study


@pytest.fixture
def questions(tmp_path):
    file = tmp_path / "q.jsonl"
    rows = [
        {"id": f"q{i}", "question": f"Question {i}?", "answers": ["yes"], "ctxs": [{"text": "It is yes."}]}
        for i in range(3)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture(autouse=True)
def reader():
    made = ScriptedReader(lambda prompt, i: "yes" if "It is yes" in prompt else "no")
    with mock.patch.object(Reader, "load", return_value=made):
        yield made


def run(*arguments):
    return CliRunner().invoke(cli.app, list(map(str, arguments)))


def test_a_study_by_flags_and_its_report(questions, tmp_path):
    common = ("study", "--data", questions, "--method", "sure:base", "--method", "sure:no_retrieval", "--reader", "r")
    done = run(*common, "-o", tmp_path / "run", "--limit", 2)
    assert done.exit_code == 0 and "4 rows" in done.stderr and "(4 new)" in done.stderr
    shown = [line.split("│") for line in done.stdout.splitlines() if "sure:" in line and "│" in line]
    assert [row[1].strip() for row in shown] == ["sure:base", "sure:no_retrieval"]
    assert [row[2].strip() for row in shown] == ["2", "2"]
    assert shown[0][3].strip().startswith("1.00 [") and shown[1][3].strip().startswith("0.00 [")
    done = run(*common, "-o", tmp_path / "run", "--resume")
    assert done.exit_code == 0 and "6 rows" in done.stderr and "(2 new)" in done.stderr
    done = run(
        "report", tmp_path / "run", "-o", tmp_path / "r.html", "--csv", tmp_path / "csv", "--svg", tmp_path / "svg"
    )
    assert done.exit_code == 0, done.output
    written = done.stdout.splitlines()
    assert written[0] == str(tmp_path / "r.html") and str(tmp_path / "csv" / "summary.csv") in written
    assert "not shown: Position bias: no method" in done.stderr
    assert "sure:<wbr>no_<wbr>retrieval" in (tmp_path / "r.html").read_text()
    table = (tmp_path / "csv" / "summary.csv").read_text().splitlines()
    assert len(table) == 3 and table[1].startswith("sure:base,") and ",1.0," in table[1]


def test_a_study_file(questions, tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text("data: q.jsonl\nreader: r\nmethods: [sure:base, noise:gold]\n")
    done = run("study", file, "-o", tmp_path / "run")
    assert done.exit_code == 0 and "3 skipped" in done.stderr


def test_every_setting_of_a_study_has_a_flag(questions, tmp_path):
    (tmp_path / "pool.jsonl").write_text(json.dumps({"text": "Something else."}) + "\n")
    file = tmp_path / "s.toml"
    tables = "[noise]\nmax_new_tokens = 7\n[sure]\nmax_summary_tokens = 9\n"
    file.write_text('data = "q.jsonl"\nmethods = ["sure:base", "sure"]\n' + tables)
    flags = (
        "--num-candidates",
        3,
        "--primary",
        "sure",
        "--random",
        tmp_path / "pool.jsonl",
        "--attention",
        2,
        "--max-batch-tokens",
        5000,
        "--conflicts",
    )
    done = run("study", file, "-o", tmp_path / "run", "--limit", 1, "--reader", "r", *flags)
    assert done.exit_code == 0, done.output
    study = RunFolder(tmp_path / "run").study()
    assert (
        study.sure == {"max_summary_tokens": 9, "k": 3} and study.primary == "sure" and study.max_batch_tokens == 5000
    )
    assert study.conflicts
    noise = study.noise
    assert (noise.random, noise.attention, noise.max_new_tokens) == (str(tmp_path / "pool.jsonl"), 2, 7)
    done = run("study", file, "-o", tmp_path / "shares", "--limit", 1, "--reader", "r", "--attribution", 1)
    assert "scores token ids" in str(done.exception)  # the answers are there, their attribution needs another reader
    assert RunFolder(tmp_path / "shares").study().attribution == 1


def test_the_token_budget_reaches_every_call(questions, tmp_path, reader):
    asked = []
    original = reader.generate
    reader.generate = lambda prompts, **options: (
        asked.append(options["max_batch_tokens"]) or original(prompts, **options)
    )
    run(
        "study",
        "--data",
        questions,
        "--method",
        "sure:base",
        "--reader",
        "r",
        "-o",
        tmp_path / "a",
        "--max-batch-tokens",
        70,
    )
    run("study", "--data", questions, "--method", "sure:base", "--reader", "r", "-o", tmp_path / "b")
    assert asked == [70, None]


def test_list():
    done = run("study", "--list")
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert done.exit_code == 0 and {"base", "moi", "sure", "eor:majority"} < {name for name, _ in lines}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("study", "none.toml", "-o", "run"), "none.toml: cannot be read (No such file or directory)"),
        (("study", "-o", "run"), "expected a study file, or --data and at least one --method"),
        (("study", "--data", "none.jsonl", "--method", "sure", "-o", "run"), "none.jsonl: no such file"),
        (("study", "--data", "none.jsonl", "--method", "shure", "-o", "run"), "did you mean 'sure'?"),
        (("study", "--data", "x", "--method", "sure", "--method", "sure", "-o", "run"), "two methods are named 'sure'"),
        (("study", "--data", "x", "--method", "sure"), "--output"),
        (("report", "run"), "--output: expected a file"),
        (("report", "nothing", "-o", "x.html"), "not the folder of a run"),
        (("report", "run", "-o", "x.pdf"), "expected an .html file"),
        (("report", "run", "-o", "none/x.html"), "--output: no folder none"),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fastreader", *arguments])
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and message in said and said.startswith("error:") and len(said.splitlines()) == 1


def test_rows_that_fail_make_the_command_fail(questions, tmp_path, reader):
    from fastreader.errors import ContextOverflowError

    def fail(*_, **__):
        raise ContextOverflowError("too long")

    reader.generate = fail
    done = run("study", "--data", questions, "--method", "sure:base", "-o", tmp_path / "run", "--reader", "r")
    assert done.exit_code == 3 and "3 failed" in done.stderr


def test_a_draft_that_a_kill_left_does_not_block_the_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    (folder.path / ".files.json.0a1b2c3d.tmp").write_text("{")
    data = tmp_path / "questions.jsonl"
    data.write_text('{"question": "q", "ctxs": [{"text": "t"}]}\n')
    study = Study.of({"data": str(data), "methods": ["base"]})
    folder.begin(study, resume=False)
    assert folder.study().to_dict() == study.to_dict()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".notes.txt").touch()
    with pytest.raises(InputError, match="holds files, but no run"):
        RunFolder(tmp_path / "other").begin(study, resume=False)


def test_every_method_has_a_sentence():
    lines = [line.split("\t") for line in run("study", "--list").stdout.splitlines()]
    assert len(lines) > 60 and all(about[0].isupper() and about.endswith(".") for _, about in lines)
    told = [about for name, about in lines if not name.endswith("-matched")]
    assert len({*told}) == len(told)
