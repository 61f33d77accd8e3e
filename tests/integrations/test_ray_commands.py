"""--ray: the commands over actors write what they write without it."""

import json
import os
import sys

import pytest
from helpers.commands import run
from helpers.support import framework

import fastreader as fr
from fastreader.data.result_log import iter_results
from fastreader.errors import InputError
from fastreader.study import RunFolder, Study

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = framework("ray", "ray")
framework("ray.data", "ray")

from fastreader.integrations.ray import ActorPool, run_study  # noqa: E402

pytestmark = pytest.mark.timeout(200)
TEXTS = ["The Nile is a river.", "Bread is baked.", "A long river flows.", "Cats sleep.", "Rain falls."]
EXACT = ("--device", "cpu", "--precision", "exact")
RAY = ("--ray", "local", "--ray-actors", "2")
UNSTEADY = ("seconds", "computed_tokens", "stats")  # they depend on the batch of a question


@pytest.fixture(scope="module", autouse=True)
def connected():
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", logging_level="warning"
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    made = []
    for i in range(70):
        passages = [
            fr.Passage(f"{text} {i % 7}", f"T{j}", f"d{j}", 3.0 - j) for j, text in enumerate(TEXTS[: 2 + i % 4])
        ]
        made.append(fr.Example(f"Which river is {i} long?", passages, ["Nile"], ["the Nile", "bread"], f"q{i}"))
    path = tmp_path_factory.mktemp("data") / "questions.jsonl"
    fr.data.save_examples(made, path)
    return path


def close(found, expected):
    """Compare JSON values, with numbers up to rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected.keys() - set(UNSTEADY):
            close(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other)
    else:
        assert found == (pytest.approx(expected, abs=1e-4) if isinstance(expected, float) else expected)


def by_id(path):
    rows = list(iter_results(path))
    found = {row["id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("command", ["rerank", "score"])
def test_the_same_file(command, questions, model, tmp_path):
    given = (command, questions, "-m", model, *EXACT, "-o")
    run(*given, tmp_path / "here.jsonl")
    run(*given, tmp_path / "there.jsonl", "--limit", "40", *RAY)
    assert len(by_id(tmp_path / "there.jsonl")) == 40
    run(*given, tmp_path / "there.jsonl", "--resume", *RAY)
    here, there = by_id(tmp_path / "here.jsonl"), by_id(tmp_path / "there.jsonl")
    assert len(there) == 70
    close(there, here)
    run(*given, tmp_path / "there.jsonl", "--resume")  # its settings equal a run's on this machine
    assert by_id(tmp_path / "there.jsonl") == there


@pytest.mark.parametrize("format", ["trec", "jsonl"])
def test_the_same_output_in_the_same_order(format, questions, model):
    given = ("rerank", questions, "-m", model, *EXACT, "--format", format, "--limit", "40", "--top-n", "2")
    here, there = run(*given).stdout.splitlines(), run(*given, *RAY).stdout.splitlines()
    if format == "trec":
        assert [line.split()[:4] for line in there] == [line.split()[:4] for line in here]
    else:
        close([json.loads(line) for line in there], [json.loads(line) for line in here])


def test_questions_that_fail(questions, model, tmp_path):
    long = {"id": "long", "question": "why " * 2000, "ctxs": [{"text": "Because."}], "candidates": ["a"]}
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join([json.dumps(long), *questions.read_text().splitlines()[:5]]) + "\n")
    for command in ("rerank", "score"):
        output = tmp_path / f"{command}.jsonl"
        given = (command, data, "-m", model, *EXACT, "-o", output, *RAY)
        failed = run(*given, "--skip-errors", expect=3)
        assert "id long" in failed.stderr and "1 skipped" in failed.stderr
        assert by_id(output).keys() == {f"q{i}" for i in range(5)}
        assert "id long" in run(*given, "--resume", expect=2).stderr


def test_options_that_do_not_go_together(questions, model):
    for option in ("--ray-actors", "--ray-gpus"):
        assert f"{option}: needs --ray" in run("rerank", questions, option, "1", expect=2).stderr
    assert "--cost: is counted on this machine" in run("score", questions, "--cost", *RAY, expect=2).stderr
    missing = run("rerank", questions, "-m", "no-such-model/here/x", *RAY, expect=2).stderr
    assert "reader: expected one that every actor can load" in missing and "ModelNotFoundError" in missing


def test_a_missing_library_names_its_extra(questions, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'ray" in run("rerank", questions, *RAY, expect=2).stderr


METHODS = ["base", "rerank", "noise:random:2:far", "sure:base"]


def study_of(questions, model, **more):
    values = {"data": str(questions), "readers": [model], "methods": METHODS, "limit": 10, "passages": 3}
    return Study.of({**values, "precision": "exact", "device": "cpu", "batch_size": 4, "max_new_tokens": 4, **more})


def test_a_study_has_the_same_rows(questions, model, tmp_path):
    from fastreader import study as here

    plain = here.run_study(study_of(questions, model), tmp_path / "here", progress=False)
    first = run_study(study_of(questions, model, limit=6), tmp_path / "there", pool=ActorPool(actors=2), progress=False)
    assert first.fresh == 6 * len(METHODS) and not first.failed
    done = run_study(
        study_of(questions, model), tmp_path / "there", pool=ActorPool(actors=2), resume=True, progress=False
    )
    assert (done.rows, done.fresh, done.failed) == (plain.rows, 4 * len(METHODS), plain.failed)
    rows = {name: {row["id"]: row for row in RunFolder(tmp_path / name).rows()} for name in ("here", "there")}
    assert len(rows["there"]) == done.rows
    for key, row in rows["here"].items():
        found = rows["there"][key]
        assert {k: v for k, v in found.items() if k not in ("seconds", "trace")} == {
            k: v for k, v in row.items() if k not in ("seconds", "trace")
        }
    again = here.run_study(study_of(questions, model), tmp_path / "there", resume=True, progress=False)
    assert again.fresh == 0 and again.rows == plain.rows
    costs = [RunFolder(tmp_path / name).read_json("costs.json")[model] for name in ("here", "there")]
    assert costs[1]["new_tokens"] == costs[0]["new_tokens"] and costs[1]["seconds"] > 0


def test_a_study_by_the_command(questions, model, tmp_path):
    given = ("study", "--data", questions, "--method", "base", "--method", "rerank", "-m", model, "--limit", "5")
    run(*given, "-o", tmp_path / "run", *RAY)
    assert len(RunFolder(tmp_path / "run").rows()) == 10
    assert "10 rows" in run(*given, "-o", tmp_path / "run", "--resume", *RAY).stderr


def test_a_study_whose_reader_no_actor_can_load(questions, tmp_path):
    with pytest.raises(InputError, match="reader: expected one that every actor can load, got 'no-such/model/x'"):
        run_study(study_of(questions, "no-such/model/x"), tmp_path / "run", progress=False)
