import csv
import json
import re
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from made_up_run import METHODS, make_run

from fastreader.errors import InputError
from fastreader.report import Report
from fastreader.report.browse import BUDGET, browser_data
from fastreader.report.study_data import StudyRun
from fastreader.statistics import mcnemar, paired_bootstrap
from fastreader.study import RunFolder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "run"
    make_run(folder)
    return Report.of(folder)


@pytest.fixture(scope="module")
def html(made):
    return made.html()


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_the_page_asks_nobody_and_repeats_no_id(html):
    elements = Elements(html).found
    outside = [a for tag, a in elements for name in ("src", "href") if re.match(r"(https?:)?//", a.get(name) or "")]
    assert outside == [] and "@import" not in html and not re.search(r"url\((?!#)", html)
    ids = [a["id"] for _, a in elements if "id" in a]
    assert len(ids) == len(set(ids)) > 50
    targets = set(re.findall(r'(?:href="#|url\(#)([^")]+)', html))
    assert targets <= set(ids)


def test_every_figure_is_there_and_has_a_name(made, html):
    assert [s.chart.key for s in made.sections if s.table is None] == []
    figures = [a for tag, a in Elements(html).found if tag == "svg"]
    assert [a["aria-label"] for a in figures] == [s.chart.title for s in made.sections]
    assert "#010203" not in html and "currentColor" in html and len(html) < 5_000_000


def test_texts_stay_texts(html):
    tags = [tag for tag, _ in Elements(html).found]
    assert tags.count("script") == 2  # the data and the code; none out of a question
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])
    assert data["questions"][0]["question"].startswith("<script>document.title")
    assert data["questions"][0]["passages"][0]["title"] == "</script><b>Title</b>"


def test_the_summary_is_what_the_statistics_say(made):
    rows = {row["method"]: row for row in made.summary}
    assert list(rows) == METHODS
    by = {c.label: made.run.outcomes(c) for c in made.run.conditions}
    assert rows["moi"]["contained"] == np.mean(list(by["moi"].values()))
    questions = list(by["base"])
    moi, base = ([by[m][q] for q in questions] for m in ("moi", "base"))
    wanted = paired_bootstrap(moi, base, clusters=[made.run.clusters[q] for q in questions])
    assert (rows["moi"]["difference"], rows["moi"]["difference_low"]) == (wanted.estimate, wanted.low)
    assert rows["moi"]["primary"] and rows["moi"]["mcnemar_holm"] == rows["moi"]["mcnemar_p"] == mcnemar(moi, base)
    assert rows["sure"]["mcnemar_holm"] >= rows["sure"]["mcnemar_p"]
    assert rows["noise:gold"]["left_out"] == 1 and rows["noise:gold"]["pairs"] == len(questions) - 1
    assert rows["base"]["baseline"] is None and rows["base"]["difference"] is None


def test_files(made, tmp_path):
    keys = [s.chart.key for s in made.sections]
    svg, png = made.write_figures(tmp_path / "a", "svg"), made.write_figures(tmp_path / "b", "png")
    assert [p.stem for p in svg] == [p.stem for p in png] == keys
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in png) and all("<svg" in p.read_text() for p in svg)
    tables = made.write_tables(tmp_path / "c")
    assert [p.stem for p in tables] == ["summary", *keys]
    with (tmp_path / "c" / "rwr.csv").open() as file:
        rows = list(csv.DictReader(file))
    table = next(s.table for s in made.sections if s.chart.key == "rwr")
    assert [float(r["rwr"]) for r in rows] == [r["rwr"] for r in table] and len(rows) == 20


def test_without_gold_flags_the_page_says_what_is_not_there(tmp_path):
    make_run(tmp_path / "run", questions=6, gold=False)
    made = Report.of(tmp_path / "run")
    absent = {s.chart.key: s.why_not for s in made.sections if s.table is None}
    assert set(absent) == {"random-passages", "attention"}
    assert "flagged as gold" in absent["random-passages"]
    html = made.html()
    assert "Not shown" in html and "flagged as gold" in html
    assert "gold passages" not in html[: html.index("<nav")]
    kinds = {row["passages"] for s in made.sections if s.chart.key == "utilities" for row in s.table}
    assert kinds == {"all"}


def test_a_run_of_one_method_leaves_out_what_it_cannot_show(tmp_path):
    make_run(tmp_path / "run", questions=4, methods=["base"])
    made = Report.of(tmp_path / "run")
    shown = [s.chart.key for s in made.sections if s.table is not None]
    assert shown == ["accuracy"]
    assert all(s.why_not for s in made.sections if s.table is None)
    assert "it takes two methods" in made.html()


def test_ratios_are_of_methods_where_there_is_no_ensemble(tmp_path):
    make_run(tmp_path / "run", questions=12, methods=["base", "sure"])
    made = Report.of(tmp_path / "run")
    table = next(s.table for s in made.sections if s.chart.key == "rwr")
    base, sure = (made.run.outcomes(c) for c in made.run.conditions)
    missed = [q for q in base if not base[q]]
    cell = next(r for r in table if (r["row"], r["column"]) == ("sure", "base"))
    assert cell["of"] == "methods" and cell["rwr"] == np.mean([sure[q] for q in missed])


def test_several_seeds_and_readers(tmp_path):
    run = make_run(tmp_path / "run", questions=6, methods=["base", "order:random"])
    values = json.loads(run.file("study.json").read_text())
    run.write_json("study.json", {**values, "readers": ["smollm2-135m", "other"], "seeds": [0, 1]})
    lines = run.file("results.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in list(rows):
        rows.append({**row, "reader": "other", "id": row["id"] + "o", "contained": 1.0})
        if row["method"] == "order:random":
            rows.append({**row, "seed": 1, "id": row["id"] + "1", "contained": 1 - row["contained"]})
    run.file("results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = Report.of(run.path)
    summary = {row["method"]: row for row in made.summary}
    assert list(summary) == [f"{m} · {r}" for r in ("smollm2-135m", "other") for m in ("base", "order:random")]
    assert summary["order:random · smollm2-135m"]["contained"] == 0.5
    assert summary["order:random · other"]["baseline"] == "base · other"
    assert "seed 1" in made.html() or '"seed":1' in made.html()


def test_a_large_run_stays_small(tmp_path):
    run = make_run(tmp_path / "run", questions=40, methods=["base", "sure", "eor"])
    rows = [json.loads(line) for line in run.file("questions.jsonl").read_text().splitlines()]
    for row in rows:
        for passage in row["passages"]:
            passage["text"] = "long " * 4000
    run.file("questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data, note = browser_data(StudyRun(run.path))
    size = len(json.dumps(data))
    assert size <= BUDGET and "cut after" in note and len(data["questions"]) == 40
    assert note in unescape(Report.of(run.path).html())


def test_runs_that_are_none(tmp_path):
    with pytest.raises(InputError, match="not the folder of a run"):
        Report.of(tmp_path)
    run = make_run(tmp_path / "run", questions=2, methods=["base"])
    run.file("results.jsonl").write_text("")
    with pytest.raises(InputError, match="holds no answers yet"):
        Report.of(tmp_path / "run")
    assert RunFolder(tmp_path / "run").rows() == []
