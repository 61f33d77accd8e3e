"""studies/noise_study.py from files to report, with a tiny reader: it stops, resumes and rejects another study."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import pytest
from lib.noise_rows import noise_answers
from noise_cases import pool

from fastreader import Example, Passage, Reader, noise, save_examples, sensitivity
from fastreader.errors import InputError
from fastreader.report import Report
from fastreader.statistics import Interval, compare
from fastreader.study import RunFolder

SCRIPT = Path(__file__).parent.parent.parent / "studies" / "noise_study.py"
NAMES = ["Ada", "Bob", "Cy", "Dan"]


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("noise_study", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def paper(study):
    return importlib.import_module("lib.noise_paper")


@pytest.fixture
def files(tmp_path):
    """Four questions. The second has no gold passage, the third too few that distract."""
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

    def run(*arguments, data=True):
        inputs = [str(files / "questions.jsonl"), str(files / "pool.jsonl")] if data else []
        command = ["noise_study.py", *inputs, *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", [*command, "--output", str(files / "run")])
        study.main()
        return files / "run"

    return run


def test_a_study_stops_resumes_and_reports(run):
    folder = run("--questions", 1)
    first = (folder / "results.jsonl").read_text()
    assert len(first.splitlines()) == 29
    folder = run("--questions", 3, "--attention", 1)
    assert (folder / "results.jsonl").read_text().startswith(first)
    study = RunFolder(folder).study()
    rows = RunFolder(folder).rows()
    assert len(rows) == 4 * 29  # the one without gold comes along
    results = {r.id: r for r in noise_answers(study, RunFolder(folder).questions(), rows, study.readers[0], 0)}
    zero, one, two, _ = results.values()
    assert len(zero.answers) == 29
    assert "no retrieved passage" in one.missing["gold"] and "retrieved:4" in one.answers
    assert "distracting:8:far" in two.missing and "distracting:4:far" in two.answers
    report = json.loads((folder / "paper" / "report.json").read_text())
    assert report["questions"] == 4 and report["counts"]["gold"]["missing"] == 1
    assert report["computed_tokens"] <= 0.6 * report["total_tokens"]
    assert [c["name"] for c in report["contrasts"] if c["primary"]] == ["random:8:near"]
    assert set(report["entropy"]) == {"gold", "random:1:near", "random:8:near", "random:8:far", "distracting:8:near"}
    assert {"random:8:near", "retrieved:4+random:8"} < set(report["published"])
    text = (folder / "paper" / "report.md").read_text()
    assert "Primary contrast, stated beforehand: random:8:near minus gold" in text
    assert "over gold alone" in text and "3 times the entropy" in text
    assert (folder / "paper" / "accuracy.svg").stat().st_size > 1000
    assert (folder / "paper" / "attention.svg").stat().st_size > 1000
    before = (folder / "results.jsonl").read_bytes()
    (folder / "paper" / "report.md").unlink()
    run("--report", data=False)
    assert (folder / "paper" / "report.md").read_text() == text and (folder / "results.jsonl").read_bytes() == before
    assert "noise:<wbr>random" in Report.of(folder).html()


def test_the_measures_of_each_layout_are_in_its_table(run, tiny_reader):
    """Two letters and the prize are read in one layout, the prize alone in the other."""
    measures = ["order_range:x", "distraction:x"]
    names = ["gold", "distracting:2:near"]
    folder = run("--questions", 1, "--layouts", *names, "--primary", names[1], "--measures", *measures)
    (example,) = RunFolder(folder).questions()
    letters, gold = example.passages[:2], example.passages[2]
    answer = next(row["answer"] for row in RunFolder(folder).rows() if row["method"] == f"noise:{names[1]}")
    order = sensitivity(tiny_reader, example.question, [*letters, gold], [answer]).ranges[0]
    effect = noise.distracting_effects(tiny_reader, example.question, letters).max()
    counts = json.loads((folder / "paper" / "report.json").read_text())["counts"]
    found = {name: {key: one["mean"]["estimate"] for key, one in counts[name]["measures"].items()} for name in names}
    assert found["gold"] == {"order_range:x": 0.0}
    assert found[names[1]] == {"order_range:x": pytest.approx(order), "distraction:x": pytest.approx(effect)}
    assert order > 0
    assert "| order_range:x | distraction:x |" in (folder / "paper" / "report.md").read_text()


def test_another_study_is_rejected(run):
    arguments = ("--questions", 1, "--layouts", "gold", "random:1:near", "random:2:near", "--primary")
    run(*arguments, "random:1:near")
    with pytest.raises(InputError, match="seeds was"):
        run(*arguments, "random:1:near", "--seed", 1)
    with pytest.raises(InputError, match="stated before the first answer: it was noise:random:1:near"):
        run(*arguments, "random:2:near")


def test_other_sources_numbers_and_hard_distractors(run):
    primary = ("--primary", "hard:2:near", "--random", "words", "--hard")
    folder = run("--questions", 2, *primary, "--counts", 2, "--retrieved", 1, 2, "--added", 1, 3, 0)
    names = [m.method.removeprefix("noise:") for m in RunFolder(folder).study().methods]
    assert [n for n in names if "retrieved" in n] == [
        f"retrieved:{k}{m}" for k in (1, 2) for m in ("", "+random:1", "+random:3")
    ]
    rows = [row for row in RunFolder(folder).rows() if row["method"] == "noise:hard:2:near"]
    assert [entry["kind"] for entry in rows[0]["trace"]["order"]] == ["distracting", "distracting", "gold"]


def test_the_papers_figures_and_their_asterisks(paper):
    """From tables 1 to 3: 8 random passages near the question do not differ significantly from gold alone."""
    published = paper.PUBLISHED
    assert len(published) == 11 * 2 + 7 * 4 + 4
    assert published["random:8:near"].difference == -0.0033 and not published["random:8:near"].significant
    assert [name for name, p in published.items() if name[0] in "dr" and name[1] == "a" and not p.significant] == [
        "random:8:near"
    ]
    assert published["retrieved:4+random:15"].difference == 0.09
    assert published["retrieved:4+random:1"].significant and not published["retrieved:5+random:1"].significant


@pytest.mark.parametrize(
    ("estimate", "p_holm", "difference", "significant", "wanted"),
    [
        (-0.1, 0.001, -0.2, True, "same sign"),
        (0.1, 0.001, -0.2, True, "opposite sign"),
        (-0.1, 0.02, -0.2, True, "ours: not significant"),
        (-0.1, 0.02, -0.003, False, "neither significant"),
        (-0.1, 0.001, -0.003, False, "paper: not significant"),
    ],
)
def test_a_difference_agrees_only_if_both_are_significant(paper, estimate, p_holm, difference, significant, wanted):
    values = {name: {i: float(i < 40) for i in range(80)} for name in ("a", "b")}
    contrast = compare(values, "b").contrasts[0]
    interval = Interval(estimate, estimate - 0.01, estimate + 0.01)  # p decides, not the interval
    ours = dataclasses.replace(contrast, difference=interval, p_holm=p_holm)
    assert paper.verdict(ours, paper.Published(0.5 + difference, 0.5, significant)) == wanted


def test_bad_input(run):
    with pytest.raises(InputError, match="not the folder of a run"):
        run("--report", data=False)
    with pytest.raises(SystemExit, match="--primary random:8:near is not among the layouts"):
        run("--layouts", "gold")
    with pytest.raises(SystemExit, match="the file has 3 questions with a gold passage"):
        run("--questions", 9)
    with pytest.raises(SystemExit, match="expected a file of questions"):
        run("--questions", 1, data=False)
