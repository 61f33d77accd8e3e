"""benchmarks/noise_study.py from files to report, with a tiny reader: stops, goes on, refuses another study."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from noise_cases import pool

from fastreader import Example, Passage, Reader, save_examples
from fastreader.errors import InputError
from fastreader.jsonl import iter_results

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "noise_study.py"
NAMES = ["Ada", "Bob", "Cy", "Dan"]


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("noise_study", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def files(tmp_path):
    """Four questions; the second has no gold passage, the third too few that distract."""
    examples = []
    for i, name in enumerate(NAMES):
        others = [Passage(f"Letter {i}{j} came.", f"Post {j}", f"{i}-{j}", is_gold=False) for j in range(9)]
        gold = Passage(f"The prize went to {name}.", "Prize", f"g{i}", is_gold=True)
        passages = others if i == 1 else [*others[:2], gold, *others[2 : 4 if i == 2 else 9]]
        examples.append(Example(f"who won prize {i}", passages, [name]))
    save_examples(examples, tmp_path / "questions.jsonl")
    rows = [json.dumps({"id": p.id, "title": p.title, "text": p.text}) for p in pool(12)]
    (tmp_path / "pool.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return tmp_path


@pytest.fixture
def run(study, files, tiny_reader, monkeypatch):
    monkeypatch.setattr(Reader, "load", lambda *args, **options: tiny_reader)

    def run(*arguments):
        command = ["noise_study.py", str(files / "questions.jsonl"), str(files / "pool.jsonl"), *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", [*command, "--output", str(files / "run")])
        study.main()
        return files / "run"

    return run


def test_a_study_stops_goes_on_and_reports(run):
    folder = run("--questions", 1)
    first = (folder / "answers.jsonl").read_text()
    assert len(first.splitlines()) == 1
    folder = run("--questions", 3, "--attention", 1)
    assert (folder / "answers.jsonl").read_text().startswith(first)
    rows = {row["id"]: row for row in iter_results(folder / "answers.jsonl")}
    assert list(rows) == ["0", "1", "2", "3"]  # the one without gold comes along
    layouts = rows["0"]["settings"]["layouts"]
    assert len(layouts) == 29 and set(rows["0"]["answers"]) == set(layouts)
    assert "no retrieved passage" in rows["1"]["missing"]["gold"] and "retrieved:4" in rows["1"]["answers"]
    assert "distracting:8:far" in rows["2"]["missing"] and "distracting:4:far" in rows["2"]["answers"]
    report = json.loads((folder / "report.json").read_text())
    assert report["questions"] == 4 and report["counts"]["gold"]["missing"] == 1
    assert report["computed"] <= 0.6 * report["given"]
    assert [c["name"] for c in report["contrasts"] if c["primary"]] == ["random:8:near"]
    assert set(report["entropy"]) == {"gold", "random:1:near", "random:8:near", "random:8:far", "distracting:8:near"}
    text = (folder / "report.md").read_text()
    assert "Primary contrast, stated beforehand: random:8:near less gold" in text
    assert (folder / "accuracy.svg").stat().st_size > 1000 and (folder / "attention.svg").stat().st_size > 1000
    before = (folder / "answers.jsonl").read_bytes()
    (folder / "report.md").unlink()
    run("--report")
    assert (folder / "report.md").read_text() == text and (folder / "answers.jsonl").read_bytes() == before


def test_another_study_is_refused(run):
    run("--questions", 1, "--layouts", "gold", "random:1:near", "--primary", "random:1:near")
    with pytest.raises(InputError, match=r"other settings: .*seed"):
        run("--questions", 1, "--layouts", "gold", "random:1:near", "--primary", "random:1:near", "--seed", 1)


def test_other_sources_and_hard_distractors(run):
    layouts = ["gold", "hard:1:near", "random:2:near", "--primary", "hard:1:near"]
    rows = list(
        iter_results(run("--questions", 1, "--hard", "--random", "words", "--layouts", *layouts) / "answers.jsonl")
    )
    assert rows[0]["answers"]["hard:1:near"]["kinds"] == ["distracting", "gold"]


def test_bad_input(run):
    with pytest.raises(InputError, match="holds no run"):
        run("--report")
    with pytest.raises(SystemExit, match="--primary random:8:near is not among the layouts"):
        run("--layouts", "gold")
    with pytest.raises(SystemExit, match="the file has 3 questions with a gold passage"):
        run("--questions", 9)
