"""The study's tables and figure, from rows made by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fastreader import noise
from fastreader.errors import InputError, MissingExtraError
from fastreader.noise import NoiseAnswer, NoiseAnswers
from fastreader.statistics import bootstrap, mcnemar, paired_bootstrap, wilson

SHARES = {
    "closed_book": 0.1,
    "gold": 0.6,
    "random:2:far": 0.5,
    "random:2:mid": 0.3,
    "random:2:near": 0.6,
    "distracting:1:near": 0.1,
    "retrieved:4": 0.2,
    "retrieved:4+random:8": 0.4,
}


def answer(right: float, text: str = "x", tokens: int = 100) -> NoiseAnswer:
    return NoiseAnswer(text, right, text == "NO-RES", ("gold",), tokens, "eos")


@pytest.fixture
def rows() -> list[NoiseAnswers]:
    generator = np.random.default_rng(4)
    return [
        NoiseAnswers(f"q{i}", f"g{i // 2}", {name: answer(float(generator.random() < p)) for name, p in SHARES.items()})
        for i in range(80)
    ]


def column(rows, name):
    return [row.answers[name].right for row in rows]


def test_each_layout_is_held_against_its_baseline(rows):
    summary = noise.summarise(rows, primary="random:2:near")
    assert (summary.questions, summary.clusters) == (80, 40)
    contrasts = {c.name: c for c in summary.comparison.contrasts}
    assert {name: c.baseline for name, c in contrasts.items()} == {
        "distracting:1:near": "gold",
        "random:2:far": "gold",
        "random:2:mid": "gold",
        "random:2:near": "gold",
        "retrieved:4+random:8": "retrieved:4",
    }
    assert [name for name, c in contrasts.items() if c.primary] == ["random:2:near"]
    mid, gold = column(rows, "random:2:mid"), column(rows, "gold")
    assert contrasts["random:2:mid"].mcnemar == mcnemar(mid, gold)
    assert contrasts["random:2:mid"].difference == paired_bootstrap(mid, gold, clusters=[i // 2 for i in range(80)])
    conditions = {c.name: c for c in summary.comparison.conditions}
    assert conditions["closed_book"].wilson == wilson(int(sum(column(rows, "closed_book"))), 80)
    assert list(conditions)[:2] == ["closed_book", "gold"]
    json.dumps(summary.to_dict(), allow_nan=False)


def test_what_was_not_asked_is_counted(rows):
    rows[0].answers.pop("gold")
    rows[0].missing["gold"] = "no gold"
    rows[1].answers["gold"] = answer(0.0, "NO-RES", 300)
    right = rows[2].answers.pop("gold").right
    rows[2].over_long["gold"] = 9000
    summary = noise.summarise(rows, primary=None)
    counts = summary.counts["gold"]
    assert (counts.asked, counts.missing, counts.over_long) == (78, 1, 1)
    assert counts.no_answer == 1 / 78 and counts.prompt_tokens == (77 * 100 + 300) / 78
    total = sum(row.answers["gold"].right for row in rows if "gold" in row.answers)
    assert counts.accuracy_over_long_wrong == total / 79 and right in (0.0, 1.0)
    assert next(c for c in summary.comparison.conditions if c.name == "gold").n == 78
    text = noise.markdown(summary)
    assert "Prompts longer than the context, not run: gold 1." in text
    assert "Questions without the passages of a layout, not run: gold 1." in text


def test_the_tables_hold_the_numbers(rows):
    summary = noise.summarise(rows, primary="random:2:near")
    text = noise.markdown(summary)
    conditions = {c.name: c.bootstrap.estimate for c in summary.comparison.conditions}
    holm = {c.name: c.p_holm for c in summary.comparison.contrasts}
    assert holm["random:2:mid"] < 0.01 < holm["random:2:far"]
    gold = f"{conditions['gold']:.3f}"
    assert f"| random | 0 | {gold} | {gold} | {gold} |" in text
    cells = [f"{conditions[f'random:2:{p}']:.3f}" + ("*" if p == "mid" else "") for p in ("far", "mid", "near")]
    assert f"| random | 2 | {' | '.join(cells)} |" in text
    assert f"| distracting | 1 |  |  | {conditions['distracting:1:near']:.3f}* |" in text
    assert f"| 0 | {conditions['retrieved:4']:.3f} |" in text
    assert "Primary contrast, stated beforehand: random:2:near minus gold" in text
    tables = [line.count("|") for line in text.splitlines() if line.startswith("|")]
    assert len(set(tables)) == 4  # every row of a table is as wide as its header


def test_measures_are_columns_of_the_layouts_that_have_them(rows):
    values = {f"q{i}": 0.1 * i for i in range(5, 25)}
    for row in rows:
        if row.id in values:
            row.answers["gold"].measures["distraction:x"] = values[row.id]
        row.answers["random:2:mid"].measures["order_range:x"] = 2.5
    summary = noise.summarise(rows, seed=3)
    gold, mid = (summary.counts[name].measures for name in ("gold", "random:2:mid"))
    expected = bootstrap(list(values.values()), clusters=[i // 2 for i in range(5, 25)], seed=3)
    assert gold == {"distraction:x": noise.MeasureMean(20, expected)}
    assert mid["order_range:x"].n == 80 and summary.counts["retrieved:4"].measures == {}
    text = noise.markdown(summary).partition("Conditions")[2].partition("Contrasts")[0]
    assert "| accuracy, over-long wrong | distraction:x | order_range:x |" in text
    found = {line.split(" | ")[0]: line.split(" | ")[-2:] for line in text.splitlines() if line.startswith("| ")}
    assert found["| gold"] == [f"{expected} (20)", " |"] and found["| closed_book"] == ["", " |"]
    assert found["| random:2:mid"] == ["", "2.500 [2.500, 2.500] |"]
    assert summary.to_dict()["counts"]["gold"]["measures"]["distraction:x"]["mean"]["estimate"] == expected.estimate


def test_the_figure(rows, tmp_path):
    figure = noise.plot_accuracy(noise.summarise(rows, primary=None), tmp_path / "a.svg")
    assert [axis.get_xlabel() for axis in figure.axes] == ["distracting passages", "random passages"]
    lines = {line.get_label(): line for line in figure.axes[1].get_lines()}
    assert set(lines) == {"far", "mid", "near", "closed book"}
    assert list(lines["mid"].get_xdata()) == [0, 2]
    assert lines["mid"].get_ydata() == pytest.approx(
        [np.mean(column(rows, "gold")), np.mean(column(rows, "random:2:mid"))]
    )
    assert (tmp_path / "a.svg").read_text().lstrip().startswith("<?xml")


def test_bad_input(rows, monkeypatch):
    with pytest.raises(InputError, match=r"results: expected at least one answer, got \[\]"):
        noise.summarise([])
    with pytest.raises(InputError, match=r"results: expected at least one answer, got \[\'q\'\]"):
        noise.summarise([NoiseAnswers("q", None, {}, {"gold": 9000})])
    with pytest.raises(InputError, match=r"each id once, got \[\'q0\'\]"):
        noise.summarise([*rows, rows[0]])
    with pytest.raises(InputError, match=r"primary: expected a condition with a baseline .*got 'random:8:near'"):
        noise.summarise(rows, primary=noise.PRIMARY)
    assert not any(c.primary for c in noise.summarise(rows).comparison.contrasts)
    plain = [NoiseAnswers("q", None, {"gold": answer(1.0), "retrieved:4": answer(0.0)})]
    summary = noise.summarise(plain, primary=None)
    assert summary.comparison.contrasts == [] and "Contrasts" not in noise.markdown(summary)
    with pytest.raises(InputError, match="expected a layout of the gold passage and others"):
        noise.plot_accuracy(summary)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match="the extra plot of fastreader"):
        noise.plot_accuracy(noise.summarise(rows, primary=None))
