import json
import re
import shutil
from dataclasses import replace

import pytest
from helpers.commands import ids, run

import fastreader as fr
from fastreader import moi
from fastreader.errors import NumericsError
from fastreader.moi import PositionBias, probe
from fastreader.moi.calibration.store import file_name_of

pytestmark = pytest.mark.usefixtures("fewer_resamples")


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    words = ["blue", "a red cat", "green sea", "ten"]
    rows = [
        {
            "id": f"q{i}",
            "question": f"Which colour is number {i}?",
            "answers": ["blue"],
            "ctxs": [
                {"id": f"d{p}", "title": "", "text": f"{i} is {w}.", "isgold": p == i % 3} for p, w in enumerate(words)
            ],
        }
        for i in range(8)
    ]
    file = tmp_path_factory.mktemp("data") / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def calibrated(model, questions, tmp_path_factory):
    """A calibration of the model at N = 3, kept in a separate cache folder."""
    folder = tmp_path_factory.mktemp("cache")
    arguments = (
        "calibrate",
        questions,
        "-m",
        model,
        "-n",
        3,
        "--scores",
        folder / "scores.jsonl",
        "--cache-dir",
        folder,
    )
    first = run(*arguments, "--limit", 5)
    assert "5 questions, 30 orderings" in first.stdout
    done = run(*arguments, "--install", "-o", folder / "bias.json", "--plot", folder / "bias.png")
    assert "8 questions, 48 orderings" in done.stdout  # the five scored before were not scored again
    assert len(ids(folder / "scores.jsonl")) == 8
    return folder


def test_calibrate(calibrated, model):
    bias = PositionBias.load(calibrated / "bias.json")
    assert (bias.num_passages, bias.num_questions, bias.reader["name"]) == (3, 8, model)
    assert bias.measured_on["design"] == "latin:2"
    assert (calibrated / "calibrations" / file_name_of(bias)).exists()
    assert (calibrated / "bias.png").stat().st_size > 1000


def test_a_calibration_of_few_places_serves_rerank_that_reads_as_few(model, questions, tmp_path):
    common = ("-m", model, "--prune", 2, "--cache-dir", tmp_path)
    scores = ("-n", 4, "--scores", tmp_path / "scores.jsonl")
    done = run("calibrate", questions, *common, *scores, "--install", "-o", tmp_path / "bias.json")
    assert "8 questions" in done.stdout
    bias = PositionBias.load(tmp_path / "bias.json")
    assert (bias.num_passages, bias.length) == (4, 2)
    (row,) = json.loads(run("moi", questions, *common, "--limit", 1, "--max-passages", 4, "-f", "json").stdout)
    assert row["bias_source"] == "cached"
    whole = ("calibrate", questions, "-m", model, "--cache-dir", tmp_path, *scores)
    assert "other settings: prune" in run(*whole, expect=2).stderr
    assert "fewer places than the 4" in run(*whole, "--prune", 4, expect=2).stderr
    assert "leave out --prune" in run(*whole, "--prune", 2, "--probe", expect=2).stderr


def test_calibrate_uses_the_gold_passages(calibrated):
    bias = PositionBias.load(calibrated / "bias.json")
    assert bias.measured_on["gold"] == 8
    assert bias.temperature != 1.0
    assert bias.contrast_z is None


def test_calibrate_on_fewer_questions_uses_those_alone(calibrated, model, questions, tmp_path):
    """The file of scores has eight questions, of which `--limit` keeps the first five."""
    arguments = ("calibrate", questions, "-m", model, "-n", 3, "--cache-dir", calibrated, "--limit", 5)
    scores = tmp_path / "scores.jsonl"
    shutil.copy(calibrated / "scores.jsonl", scores)
    done = run(*arguments, "--scores", scores, "-o", tmp_path / "bias.json")
    assert "5 questions, 30 orderings" in done.stdout
    bias = PositionBias.load(tmp_path / "bias.json")
    assert bias.measured_on["ids"] == ["q0", "q1", "q2", "q3", "q4"]
    other = tmp_path / "other.jsonl"
    other.write_text(questions.read_text().replace("colour", "shade"))
    done = run("calibrate", other, *arguments[2:], "--scores", scores, expect=2)
    assert "'q0' has a result already, made from another question" in done.stderr


def test_calibrate_with_a_probe(calibrated, model, questions, tmp_path):
    shutil.copy(calibrated / "scores.jsonl", tmp_path / "scores.jsonl")
    arguments = ("calibrate", questions, "-m", model, "-n", 3, "--cache-dir", calibrated, "--probe")
    arguments += ("--scores", tmp_path / "scores.jsonl", "-o", tmp_path / "bias.json")
    run(*arguments)
    bias = PositionBias.load(tmp_path / "bias.json")
    examples = [replace(e, passages=e.passages[:3]) for e in fr.load_examples(questions)]
    effects = probe(fr.Reader.load(model), examples).effects
    each = effects @ bias.bias
    assert bias.contrast_z == pytest.approx(each.mean() / (each.std(ddof=1) / 8**0.5), rel=1e-2)
    beside = tmp_path / "scores.probe.jsonl"
    before = beside.read_bytes()
    run(*arguments)
    assert beside.read_bytes() == before
    bare = tmp_path / "bare.jsonl"
    bare.write_text(questions.read_text().replace('"isgold": true', '"isgold": false'))
    done = run("calibrate", bare, *arguments[2:], expect=2)
    assert "--probe: expected at least 2 questions with gold passage and answers, got 0" in done.stderr


def test_calibrate_rejects_too_few_questions(model, questions, tmp_path):
    done = run("calibrate", questions, "-m", model, "-n", 5, "--scores", tmp_path / "s.jsonl", expect=2)
    assert "at least 2 questions with 5 passages, got 0" in done.stderr


def test_rerank_uses_what_was_kept(calibrated, model, questions):
    common = ("-m", model, "--max-passages", 3, "--limit", 2, "--cache-dir", calibrated)
    rows = json.loads(run("moi", questions, *common, "-f", "json").stdout)
    assert [row["id"] for row in rows] == ["q0", "q1"]
    for row in rows:
        assert (row["bias_source"], row["order"], row["tail"]) == ("cached", "matched", 1)
        assert sorted(p["index"] for p in row["passages"]) == [0, 1, 2, 3]
        assert row["cost"]["share"] < 1
    table = run("moi", questions, *common).stdout
    assert "matched order; bias: cached" in table
    assert "Which colour is number 1?" in table
    lines = [json.loads(line) for line in run("moi", questions, *common, "-f", "jsonl").stdout.splitlines()]
    assert lines == rows


def test_rerank_without_a_calibration_reports_it(model, questions, tmp_path):
    done = run("moi", questions, "-m", model, "--limit", 1, "--cache-dir", tmp_path)
    assert "none: query likelihood" in done.stdout
    for form in ("trec", "jsonl"):
        done = run("moi", questions, "-m", model, "--limit", 2, "-f", form, "--cache-dir", tmp_path)
        assert done.stderr.count("note: no calibration") == 1


def test_the_cost_of_rounds_is_bounded(calibrated, model, questions):
    common = ("moi", questions, "-m", model, "--limit", 1, "--max-passages", 3, "--cache-dir", calibrated)
    printed = run(*common, "--cost", "--stop-p-best", 0.999).stdout
    counts = r"([\d,]+) tokens to compute in the first rounds, at most ([\d,]+) in all"
    first, most = re.search(counts, printed).groups()
    (row,) = json.loads(run(*common, "--stop-p-best", 0.999, "-f", "json").stdout)
    assert row["cost"]["passes"] > 1
    assert int(first.replace(",", "")) < row["cost"]["computed_tokens"] <= int(most.replace(",", ""))


def test_rerank_as_a_trec_run(model, questions, tmp_path):
    done = run("moi", questions, "-m", model, "--limit", 2, "-f", "trec", "--max-passages", 3, "--cache-dir", tmp_path)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [(r[0], r[3]) for r in rows] == [(q, str(k)) for q in ("q0", "q1") for k in range(1, 5)]
    for part in (rows[:4], rows[4:]):
        scores = [float(r[4]) for r in part]
        assert scores == sorted(scores, reverse=True)
        assert part[3][2] == "d3"  # the tail
        assert {r[2] for r in part} == {"d0", "d1", "d2", "d3"}


def test_an_id_that_no_trec_run_can_hold_is_one_error_of_many(model, questions, tmp_path):
    file = tmp_path / "questions.jsonl"
    file.write_text(questions.read_text().replace('"q1"', '"q 1"'))
    common = ("moi", file, "-m", model, "--limit", 3, "-f", "trec", "--max-passages", 2, "--cache-dir", tmp_path)
    done = run(*common, "--skip-errors", expect=3)
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"q0", "q2"}
    assert "question id without white space and control characters, got 'q 1'" in done.stderr
    assert "id q 1" in run(*common, expect=2).stderr


def test_rerank_to_a_file_is_resumed(model, questions, tmp_path):
    out = tmp_path / "ranked.jsonl"
    common = ("moi", questions, "-m", model, "--max-passages", 2, "-o", out, "--cache-dir", tmp_path)
    run(*common, "--limit", 2)
    assert ids(out) == ["q0", "q1"]
    run(*common, "--limit", 4, "--resume")
    assert ids(out) == ["q0", "q1", "q2", "q3"]
    assert run(*common, "--cost", "--resume").stdout.startswith("4 questions: ")  # those that are left
    assert ids(out) == ["q0", "q1", "q2", "q3"]
    assert "other settings" in run(*common, "--resume", "--seed", 1, expect=2).stderr


@pytest.mark.parametrize("command", [("moi", "--max-passages", 3), ("ask", "--method", "moi@3")])
def test_a_calibration_made_meanwhile_is_not_mixed_in(command, calibrated, model, questions, tmp_path):
    """One file must not mix rows without a calibration with rows of a calibration kept later."""
    name, *how = command
    common = (name, questions, "-m", model, *how, "-o", tmp_path / "out.jsonl", "--cache-dir", tmp_path / "cache")
    run(*common, "--limit", 1)
    shutil.copytree(calibrated / "calibrations", tmp_path / "cache" / "calibrations")
    assert "other settings: bias" in run(*common, "--limit", 2, "--resume", expect=2).stderr


def test_cost_is_printed_without_running(calibrated, model, questions):
    done = run("moi", questions, "-m", model, "--max-passages", 3, "--cost", "--cache-dir", calibrated)
    assert done.stdout.startswith("8 questions: ")
    assert "of 3N whole orderings" in done.stdout


def test_rerank_rejects_another_models_bias(calibrated, model, questions, tmp_path):
    path = tmp_path / "bias.json"
    values = PositionBias.load(calibrated / "bias.json").to_dict() | {"reader": {"name": "another"}}
    PositionBias.from_dict(values).save(path)
    done = run("moi", questions, "-m", model, "--max-passages", 3, "--bias", path, expect=2)
    assert "bias 'another'" in done.stderr
    done = run("moi", questions, "-m", model, "--max-passages", 3, "--bias", path, "--skip-errors", expect=3)
    assert "8 skipped" in done.stderr


def test_calibrate_looks_at_its_outputs_first(questions, tmp_path):
    common = ("calibrate", questions, "-m", tmp_path / "no-model", "-n", 3, "--scores", tmp_path / "scores.jsonl")
    assert "--output: no folder" in run(*common, "-o", tmp_path / "none" / "bias.json", expect=2).stderr
    assert "--plot: no folder" in run(*common, "--plot", tmp_path / "none" / "bias.png", expect=2).stderr
    assert f"--output: {tmp_path} is a folder" in run(*common, "-o", tmp_path, expect=2).stderr
    assert "--plot: expected a file ending in one of" in run(*common, "--plot", tmp_path / "b.foo", expect=2).stderr
    before = questions.read_text()
    for wrong, named in (
        (("-o", questions), "is also FILE"),
        (("-o", tmp_path / "scores.jsonl"), "is also --scores"),
        (("-o", tmp_path / "a.svg", "--plot", tmp_path / "a.svg"), "is also --output"),
    ):
        assert named in run(*common, *wrong, expect=2).stderr
    assert questions.read_text() == before


def test_ask(calibrated, model, questions, tmp_path):
    common = ("ask", questions, "-m", model, "--method", "moi@3")
    rows = json.loads(run(*common, "--limit", 2, "-f", "json", "--cache-dir", calibrated).stdout)
    assert [row["id"] for row in rows] == ["q0", "q1"]
    for row in rows:
        assert row["method"] == "moi"
        assert row["ranked"]["bias_source"] == "cached"
        assert row["cost"]["answer"] > 0
        assert len(row["ranked"]["passages"]) == 4  # three of them were read
    explained = run(*common, "--limit", 1, "--explain", "--cache-dir", tmp_path).stdout
    assert "none: query likelihood" in explained
    assert "note: no calibration" in run(*common, "--limit", 1, "--cache-dir", tmp_path).stderr
    bias = ("--bias", calibrated / "bias.json", "--order", "descending")
    assert "descending order; bias: given" in run(*common, "--limit", 1, "--explain", *bias).stdout


def test_ask_generates_even_if_the_file_has_candidates(calibrated, model, questions, tmp_path):
    row = json.loads(questions.read_text().splitlines()[0]) | {"candidates": ["blue", "green"]}
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps(row) + "\n")
    common = ("ask", file, "-m", model, "--method", "moi@3", "-f", "json", "--cache-dir", calibrated)
    (answered,) = json.loads(run(*common).stdout)
    assert not answered["reading"]["candidates"]
    out = tmp_path / "answers.jsonl"
    run(*common[:-4], "--cache-dir", calibrated, "-o", out)
    before = out.read_text()
    file.write_text(json.dumps(row | {"candidates": ["red"]}) + "\n")
    run(*common[:-4], "--cache-dir", calibrated, "-o", out, "--resume")
    assert out.read_text() == before
    assert answered["answer"] not in row["candidates"]


def test_questions_whose_pass_fails_are_skipped_by_name(model, questions, monkeypatch):
    def fails(reader, example, **_):
        raise NumericsError("a log-likelihood is not finite")

    monkeypatch.setattr(moi, "rerank", fails)
    common = ("moi", questions, "-m", model, "--limit", 2)
    assert "id q0: a log-likelihood is not finite" in run(*common, expect=2).stderr
    assert "2 skipped" in run(*common, "--skip-errors", expect=3).stderr


def test_ask_is_resumed(model, questions, tmp_path):
    out = tmp_path / "answers.jsonl"
    common = ("ask", questions, "-m", model, "--method", "moi@2", "-o", out, "--cache-dir", tmp_path)
    run(*common, "--limit", 1)
    done = run(*common, "--limit", 3, "--resume")
    assert ids(out) == ["q0", "q1", "q2"]
    assert "3 answers in" in done.stderr
    assert "other settings" in run(*common, "--resume", "--order", "descending", expect=2).stderr


def test_ask_rejects_bad_arguments(calibrated, model, questions, tmp_path):
    common = ("ask", questions, "-m", model, "--limit", 2, "--cache-dir", tmp_path)
    assert "moi@x" in run(*common, "--method", "moi@x", expect=2).stderr
    wrong = (*common, "--method", "moi@2", "--bias", calibrated / "bias.json")
    assert "id q0: bias: measured on something else" in run(*wrong, expect=2).stderr
    assert "2 skipped" in run(*wrong, "--skip-errors", expect=3).stderr
