"""The recipes in studies/papers run end to end, with the methods and figures of their tables."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from helpers.support import LONG_FORMS, PACKAGED, QUESTIONS, byte_tokenizer, tiny_llama

from fastreader import Reader
from fastreader.report.study_data import StudyRun
from fastreader.report.tables import summary_rows
from fastreader.study import Study, run_study
from fastreader.study.registry import check

FOLDER = Path(__file__).parents[2] / "studies" / "papers"
RECIPES = ("moi", "sure", "eor", "noise")
ROWS = 20 if LONG_FORMS else 1
PASSAGES = 3


@pytest.fixture(scope="module")
def long_tiny_reader():
    model = tiny_llama(max_position_embeddings=8192)
    return Reader.load((model, byte_tokenizer(chat=True)), device="cpu", precision="exact")


@pytest.fixture
def files(tmp_path):
    """A file of questions, whose first passage is gold, and of a corpus."""
    rows = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    words = 100 if LONG_FORMS else 6
    made = []
    for i in range(ROWS):
        row = rows[i % len(rows)]
        passages = [{**p, "text": " ".join(p["text"].split()[:words])} for p in row["ctxs"]]
        passages.sort(key=lambda p: not p["isgold"])
        again = f" Question {i}." if i >= len(rows) else ""
        made.append({**row, "id": f"q{i}", "question": row["question"] + again, "ctxs": passages[:PASSAGES]})
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    pool = [p for row in rows for p in row["ctxs"]]
    lines = ({"id": p["id"], "title": p["title"], "text": " ".join(p["text"].split()[:words])} for p in pool)
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def recipe(name, files):
    corpus = str(files / "corpus.jsonl")
    more = {"eor": {"eor": {"sources": {"Wiki": corpus, "SE": corpus}}}, "noise": {"noise": {"random": corpus}}}
    if not LONG_FORMS:
        more["sure"] = {"max_new_tokens": 8, "sure": {"max_summary_tokens": 16, "max_reasoning_tokens": 16}}
        more["moi"] = {"max_new_tokens": 8}
    return Study.load(FOLDER / f"{name}.toml", data=str(files / "questions.jsonl"), **more.get(name, {}))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_answers_every_question_by_every_method(name, files, request):
    # Some seconds each, as a recipe has up to 60 methods, and EoR's reader writes documents of 384 tokens.
    study = recipe(name, files)
    check(study)
    reader = request.getfixturevalue("packaged_reader" if LONG_FORMS else "long_tiny_reader")
    done = run_study(study, files / "run", load=lambda _: reader, progress=False)
    assert (done.rows, done.failed, done.over_long) == (len(study.methods) * ROWS, 0, 0)
    summary = summary_rows(StudyRun(files / "run"))
    assert all(row[study.metric] is not None for row in summary if row["answered"])
    # a question has two distracting passages at most
    lacking = [f"distracting:{n}:" for n in range(PASSAGES, 19)]
    assert all(row["answered"] == ROWS or any(kind in row["method"] for kind in lacking) for row in summary)


@pytest.mark.parametrize("name", RECIPES)
def test_published_figures_are_of_methods_and_metrics_of_the_recipe(name):
    values = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    labels = {m if isinstance(m, str) else m.get("name", m["method"]) for m in values["methods"]}
    text = (FOLDER / f"{name}.toml").read_text()
    labels |= set(re.findall(r'"(noise:[^"]+)"', "".join(re.findall(r"^    # .*", text, re.MULTILINE))))  # to switch on
    figures = values.get("published", [])
    assert bool(figures) == (name != "moi")
    for entry in figures:
        assert PACKAGED not in entry["readers"]
        for metric, found in entry["values"].items():
            assert metric in (values["metric"], "f1")
            assert found.keys() <= labels and values["baseline"] in found


def test_figures_are_the_papers():
    """Cells read from the papers' tables by eye, one of each kind."""

    def cell(name, reader, data_set, metric, method, source):
        entries = tomllib.loads((FOLDER / f"{name}.toml").read_text())["published"]
        (found,) = (
            e for e in entries if reader in e["readers"] and e["data_set"] == data_set and e["source"].endswith(source)
        )
        return found["values"][metric][method]

    assert cell("sure", "gpt-3.5-turbo-0301", "2Wiki", "f1", "sure:replug", "table 1") == 0.285
    assert cell("sure", "gpt-3.5-turbo-0301", "NQ", "em", "sure", "table 1") == 0.335
    assert cell("eor", "meta-llama/Llama-2-13b-chat-hf", "WebQ", "words", "EoR", "(EM)") == 0.4719
    assert (
        cell("noise", "mosaicml/mpt-7b-instruct", "NQ-open train", "contained", "noise:random:8:mid", "table 2")
        == 0.1566
    )
    assert (
        cell("noise", "microsoft/phi-2", "NQ-open train", "contained", "noise:distracting:6:near", "table 1") == 0.3623
    )
