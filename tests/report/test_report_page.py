import base64
import csv
import hashlib
import json
import re
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from made_up_run import GRID, METHODS, make_run

from fastreader.core.drawing import COLOURS
from fastreader.errors import InputError
from fastreader.report import Report
from fastreader.report.browse import BUDGET, browser_data
from fastreader.report.policy import PLACE, StyleClasses, with_policy
from fastreader.report.study_data import StudyRun
from fastreader.statistics import mcnemar, paired_bootstrap
from fastreader.statistics.measures.retrieval import retrieval_measures
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


def test_the_page_needs_no_network_and_repeats_no_id(html):
    elements = Elements(html).found
    outside = [a for tag, a in elements for name in ("src", "href") if re.match(r"(https?:)?//", a.get(name) or "")]
    assert outside == [] and "@import" not in html and not re.search(r"url\((?!#)", html)
    ids = [a["id"] for _, a in elements if "id" in a]
    assert len(ids) == len(set(ids)) > 50
    targets = set(re.findall(r'(?:href="#|url\(#)([^")]+)', html))
    assert targets <= set(ids)


class Inline(HTMLParser):
    """The text of every script that runs and every style sheet, and the policy."""

    def __init__(self, text):
        super().__init__()
        self.texts, self.policy, self.inside, self.handlers = {"script": [], "style": []}, None, None, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "meta" and values.get("http-equiv") == "Content-Security-Policy":
            assert self.policy is None and not any(self.texts.values())  # it covers only what follows it
            self.policy = dict(part.strip().split(" ", 1) for part in values["content"].split(";"))
        self.handlers += [name for name in values if name.startswith("on") or name == "style"]
        if (tag in self.texts and "type" not in values) or values.get("type") == "text/css":
            self.inside = tag
            self.texts[tag].append("")

    def handle_data(self, data):
        if self.inside:
            self.texts[self.inside][-1] += data

    def handle_endtag(self, tag):
        self.inside = None


def test_the_policy_allows_exactly_the_pages_own_script_and_styles(html):
    inline = Inline(html)
    assert len(inline.texts["script"]) == 1 and len(inline.texts["style"]) > 5 and inline.handlers == []
    policy = inline.policy
    assert {k: policy.pop(k) for k in ("default-src", "img-src", "base-uri", "form-action")} == {
        "default-src": "'none'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    for kind, texts in inline.texts.items():
        digests = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts}
        assert set(policy.pop(f"{kind}-src").split()) == {f"'sha256-{digest}'" for digest in digests}
    assert policy == {}


def test_figures_keep_their_styles_as_classes(html):
    used = set(re.findall(r'class="(s\d+)"', html))
    rules = dict(re.findall(r"^\.(s\d+) \{ (.*) \}$", html, re.MULTILINE))
    assert used == set(rules) and len(rules) > 20
    assert any("max-width:" in rule for rule in rules.values()) and any("stroke:" in rule for rule in rules.values())


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


def test_the_summary_agrees_with_the_statistics(made):
    rows = {row["method"]: row for row in made.summary}
    assert list(rows) == METHODS
    by = {c.label: made.run.outcomes(c) for c in made.run.conditions}
    assert rows["moi"]["contained"] == np.mean(list(by["moi"].values()))
    questions = list(by["base"])
    moi, base = ([by[m][q] for q in questions] for m in ("moi", "base"))
    wanted = paired_bootstrap(moi, base, clusters=[made.run.clusters[q] for q in questions])
    assert (rows["moi"]["difference"], rows["moi"]["difference_low"]) == (wanted.estimate, wanted.low)
    assert rows["moi"]["primary"] and rows["moi"]["p_holm"] == rows["moi"]["p"] == mcnemar(moi, base)
    assert rows["sure"]["p_holm"] >= rows["sure"]["p"] and rows["sure"]["test"] == "McNemar"
    assert rows["noise:gold"]["left_out"] == 1 and rows["noise:gold"]["pairs"] == len(questions) - 1
    assert rows["base"]["baseline"] is None and rows["base"]["difference"] is None


def test_files(made, tmp_path):
    keys = [s.chart.key for s in made.sections]
    svg, png = made.write_figures(tmp_path / "a", "svg"), made.write_figures(tmp_path / "b", "png")
    assert [p.stem for p in svg] == [p.stem for p in png] == keys
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in png) and all("<svg" in p.read_text() for p in svg)
    tables = made.write_tables(tmp_path / "c")
    assert [p.stem for p in tables] == ["summary", "retrieval", *keys]
    with (tmp_path / "c" / "rwr.csv").open() as file:
        rows = list(csv.DictReader(file))
    table = next(s.table for s in made.sections if s.chart.key == "rwr")
    assert [float(r["rwr"]) for r in rows] == [r["rwr"] for r in table] and len(rows) == 20


def test_without_gold_flags_the_page_lists_missing_figures(tmp_path):
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


def test_ratios_are_of_methods_if_there_is_no_ensemble(tmp_path):
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


def changed(run, change):
    """Rewrite the run's rows."""
    rows = [json.loads(line) for line in run.file("results.jsonl").read_text().splitlines()]
    for row in rows:
        change(row)
    run.file("results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_cut_texts_of_traces_are_reported(tmp_path):
    run = make_run(tmp_path / "run", questions=4, methods=["base", "sure"])

    def long(row):
        if row["method"] == "sure":
            row["trace"]["summaries"] = ["long " * 4000, "short"]

    changed(run, long)
    data, note = browser_data(StudyRun(run.path))
    assert note == "Texts are cut after 1200 characters; the run's folder has them whole."
    assert data["questions"][0]["rows"][1]["trace"]["summaries"][0].endswith("…")


def test_passages_that_layouts_share_appear_once(tmp_path):
    run = make_run(tmp_path / "run", questions=2, methods=GRID, passages=9)
    question = browser_data(StudyRun(run.path))[0]["questions"][0]
    passages = question["passages"]
    assert question["own"] == 9 and len(passages) == 9 + 8
    assert [p["kind"] for p in passages[9:]] == ["random"] * 8
    gold = next(i for i, p in enumerate(passages) if p.get("gold"))
    by_method = {GRID[row["m"]]: row["trace"].get("order") for row in question["rows"] if "trace" in row}
    assert by_method["noise:random:2:near"] == [9, 10, gold]
    assert by_method["noise:random:8:far"] == [gold, *range(9, 17)]
    assert by_method["noise:retrieved:4"] == [3, 2, 1, 0]


@pytest.mark.long
def test_100_questions_of_29_layouts_are_all_on_the_page(tmp_path):
    """Each question has twenty passages of 78 words, as the real ones do."""
    run = make_run(tmp_path / "run", questions=100, methods=GRID, passages=20, words=78)
    data, _ = browser_data(StudyRun(run.path))
    assert len(GRID) == 29 and len(data["questions"]) == 100
    assert sum(len(question["rows"]) for question in data["questions"]) == 100 * 29
    assert len(Report.of(run.path).html().encode()) < 2_500_000


def test_a_run_without_a_miss_has_a_report(tmp_path):
    run = make_run(tmp_path / "run", questions=4, methods=["base", "sure"])
    changed(run, lambda row: row.update(contained=1.0))
    made = Report.of(run.path)
    assert "got a question wrong" in next(s.why_not for s in made.sections if s.chart.key == "mrlr")
    assert made.html()
    assert len(made.write_figures(tmp_path / "svg", "svg")) == sum(s.table is not None for s in made.sections)


def test_prompts_over_the_context_have_a_count_of_their_own(tmp_path):
    run = make_run(tmp_path / "run", questions=4, methods=["base", "noise:gold", "noise:random:2:near"])

    def long(row):
        if row["method"] == "noise:random:2:near" and row["question_id"] in ("q2", "q3"):
            row.update(answer=None, em=None, f1=None, contained=None, left_out="too long", over_long=9000, trace={})

    changed(run, long)
    made = Report.of(run.path)
    row = {row["method"]: row for row in made.summary}["noise:random:2:near"]
    assert (row["left_out"], row["over_long"]) == (3, 2)
    assert "1 left out" in made.html() and "2 over the context" in made.html()


def test_retrieval_covers_the_questions_with_flags(made, html, tmp_path):
    rows = {row["order"]: row for row in made.retrieval.rows}
    assert list(rows) == ["the retriever's", "moi", "order:random"] and made.retrieval.left_out == 0
    examples = list(made.run.questions.values())
    assert rows["the retriever's"]["nDCG@10"] == retrieval_measures(examples).means["nDCG@10"]
    places = []
    for row in made.run.of(next(c for c in made.run.conditions if c.method == "moi")):
        utility = row["trace"]["utilities"]["utility"]
        gold = next(i for i, p in enumerate(made.run.questions[row["question_id"]].passages) if p.is_gold)
        places.append(1 / (1 + sum(value > utility[gold] for value in utility)))
    assert rows["moi"]["RR"] == pytest.approx(np.mean(places)) and rows["moi"]["questions"] == 24
    assert 'id="retrieval"' in html
    make_run(tmp_path / "run", questions=3, methods=["base"], gold=False)
    without = Report.of(tmp_path / "run")
    assert "no question has passages with gold flags" in without.html()
    assert "retrieval" not in [path.stem for path in without.write_tables(tmp_path / "csv")]


def test_a_layer_that_sees_no_passage_is_empty_in_the_heat_map(tmp_path):
    run = make_run(tmp_path / "run", questions=4, methods=["base", "noise:gold", "noise:random:2:near"])
    rows = [json.loads(line) for line in run.file("attention.jsonl").read_text().splitlines()]
    for row in rows:
        row["attention"]["attention"][2] = [0.0] * len(row["attention"]["kinds"])
    rows.append({**rows[0], "id": "x", "attention": None, "error": "the reply is empty"})
    run.file("attention.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = Report.of(run.path)
    table = next(s.table for s in made.sections if s.chart.key == "attention")
    assert {row["layer"] for row in table if row["share"] is None} == {2}
    assert "the reply is empty" in made.html()


def test_attention_of_layouts_that_hold_more_passages_for_some_questions(tmp_path):
    """Layouts with "fill" do. The figure has the number of the first question."""
    run = make_run(tmp_path / "run", questions=4, methods=["base", "noise:gold", "noise:random:2:near"])
    rows = [json.loads(line) for line in run.file("attention.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["layout"] == "random:2:near"]
    rows[1]["attention"] |= {
        "kinds": ["random", "gold"],
        "attention": [cells[:2] for cells in rows[1]["attention"]["attention"]],
    }
    run.file("attention.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = next(s.table for s in Report.of(run.path).sections if s.chart.key == "attention")
    assert {(row["place"], row["kind"], row["questions"]) for row in table} == {
        (1, "random", len(rows) - 1),
        (2, "random", len(rows) - 1),
        (3, "gold", len(rows) - 1),
    }


def test_seeds_of_a_question_do_not_count_as_questions(tmp_path):
    charts = ("position-bias", "utilities", "passage-position")
    run = make_run(tmp_path / "run", questions=6, methods=["base", "moi"])
    rows = [json.loads(line) for line in run.file("results.jsonl").read_text().splitlines()]
    for row in rows:
        if row["method"] == "moi":
            row["trace"].pop("bias", None)  # so that each question's own solve is shown
    write = lambda rows: run.file("results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))  # noqa: E731
    write(rows)
    once = {s.chart.key: s.table for s in Report.of(run.path).sections if s.chart.key in charts}
    write(rows + [{**row, "seed": 1, "id": row["id"] + "s"} for row in rows])
    twice = {s.chart.key: s.table for s in Report.of(run.path).sections if s.chart.key in charts}
    assert once.keys() == set(charts)
    for key, table in once.items():
        for before, after in zip(table, twice[key], strict=True):
            same = before.keys() - {"orderings"}
            assert {k: before[k] for k in same} == pytest.approx({k: after[k] for k in same})


def test_every_method_is_compared_with_its_own_readers_baseline(tmp_path):
    run = make_run(tmp_path / "run", questions=3, methods=["base", "sure"])
    values = json.loads(run.file("study.json").read_text())
    run.write_json("study.json", {**values, "readers": ["smollm2-135m", "other"]})
    rows = [json.loads(line) for line in run.file("results.jsonl").read_text().splitlines()]
    rows += [{**row, "reader": "other", "id": row["id"] + "o"} for row in rows]
    run.file("results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data, _ = browser_data(StudyRun(run.path))
    assert data["methods"] == ["base · smollm2-135m", "sure · smollm2-135m", "base · other", "sure · other"]
    assert data["baselines"] == [0, 0, 2, 2]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("paper", ["#ffffff", "#15181c"])
def test_colours_stand_out_from_the_page(colour, paper):
    def luminance(text):
        parts = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(colour), luminance(paper)))
    assert (high + 0.05) / (low + 0.05) >= 3


def test_folders_without_answers(tmp_path):
    with pytest.raises(InputError, match="not the folder of a run"):
        Report.of(tmp_path)
    run = make_run(tmp_path / "run", questions=2, methods=["base"])
    run.file("results.jsonl").write_text("")
    with pytest.raises(InputError, match="holds no answers yet"):
        Report.of(tmp_path / "run")
    assert RunFolder(tmp_path / "run").rows() == []


def test_the_policy_is_made_of_the_parts_and_not_of_the_page():
    script, style = "\nown();\n", "p {}"
    markup = "<p><script>evil()</script><style>b {}</style>"
    page = f'<meta content="{PLACE}"><style>{style}</style>{markup}<script>{script}</script>'
    found = with_policy(page, [script], [style])
    allowed = set(re.findall(r"sha256-([^']+)'", found))
    assert allowed == {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)}
    assert "script-src 'none'; style-src 'none'" in with_policy(page)


def test_only_styles_of_elements_become_classes():
    classes = StyleClasses()
    text = ' style="} body { display: none } .y {"'
    kept = f"<!-- a label{text} --><text>label{text}</text><path{text}/>"
    assert classes.replace(kept) == kept and classes.sheet() == ""
    assert classes.replace('<path d="M0" style="fill: red"/>') == '<path d="M0" class="s0"/>'
    assert classes.sheet() == ".s0 { fill: red }"
