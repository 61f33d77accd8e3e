"""A paper's figures stand next to a run's only if reader, retriever and data set are the paper's."""

import csv
import io

import pytest
from helpers.scripted import ScriptedReader
from rich.console import Console

from fastreader.cli.tables.study import study_table
from fastreader.errors import InputError
from fastreader.report import Report
from fastreader.report.published import published_rows, remarks
from fastreader.report.study_data import StudyRun
from fastreader.study.config import Study
from studies import run, study_of, write

FIGURES = {
    "source": "Someone 2020, table 1",
    "readers": ["big/model", "Scripted"],
    "data_set": "NQ open",
    "retriever": "BM25",
    "questions": 3610,
    "values": {"em": {"sure:base": 0.25, "elsewhere": 0.5}, "rouge_l": {"sure:base": 0.5}},
}
STATED = {"data_set": "nq OPEN", "retriever": "bm25"}


def finished(tmp_path, **more):
    study = study_of(tmp_path, ["sure:base"], count=2, published=[FIGURES], **more)
    run(study, tmp_path / "run")
    return StudyRun(tmp_path / "run")


def printed(found):
    shown = io.StringIO()
    Console(file=shown, width=200).print(study_table(found))
    return shown.getvalue()


def test_figures_of_the_same_reader_retriever_and_data_are_shown(tmp_path):
    found = finished(tmp_path, **STATED, differs=["Prompts are ours."])
    (row,) = published_rows(found)  # the run has no rouge_l, and no method "elsewhere"
    assert row == {
        "source": "Someone 2020, table 1", "method": "sure:base", "reader": "scripted", "metric": "em", "n": 2,
        "ours": 1.0, "published": 0.25, "questions": 3610,
    }  # fmt: skip
    assert remarks(found) == ["Prompts are ours."]
    text = printed(found)
    assert "0.250" in text and "3,610" in text and "Prompts are ours." in text
    report = Report.of(tmp_path / "run")
    page = report.html()
    assert "Someone 2020, table 1" in page and "<td>0.250</td><td>3,610</td>" in page and "Prompts are ours." in page
    report.write_tables(tmp_path)
    with (tmp_path / "published.csv").open() as file:
        assert [line["published"] for line in csv.DictReader(file)] == ["0.25"]


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        ({}, "its retriever is BM25, here not stated; its data set is NQ open, here not stated."),
        ({**STATED, "retriever": "DPR"}, "its retriever is BM25, here DPR."),
        ({**STATED, "readers": ["small"]}, "its reader is big/model or Scripted, here small."),
    ],
)
def test_other_figures_are_named_and_not_shown(tmp_path, stated, sentence):
    study = study_of(tmp_path, ["sure:base"], count=2, published=[FIGURES], **stated)
    reader = ScriptedReader(write)
    reader.name = "small" if "readers" in stated else "scripted"
    run(study, tmp_path / "run", reader)
    found = StudyRun(tmp_path / "run")
    assert published_rows(found) == []
    assert remarks(found) == [f"Someone 2020, table 1 is not shown next to these figures: {sentence}"]
    assert "0.250" not in printed(found)


def test_the_name_by_which_an_engine_serves_the_reader_counts(tmp_path):
    study = study_of(tmp_path, ["sure:base"], count=1, published=[FIGURES], **STATED)
    study = study.model_copy(update={"readers": ("http://engine",)})
    reader = ScriptedReader(write)
    reader.name = "big/model"
    run(study, tmp_path / "run", reader)
    assert len(published_rows(StudyRun(tmp_path / "run"))) == 1


def test_statements_may_be_added_to_a_run(tmp_path):
    study = study_of(tmp_path, ["sure:base"], count=1, published=[FIGURES])
    run(study, tmp_path / "run")
    again = study.model_copy(update=STATED)
    assert run(again, tmp_path / "run", resume=True).fresh == 0
    assert len(published_rows(StudyRun(tmp_path / "run"))) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": {"em": {"base": 28.4}}}, "published.0.values.em.base: .*less than or equal to 1"),
        ({"readers": []}, "published.0.readers"),
        ({"year": 2020}, "published.0.year: unknown key"),
    ],
)
def test_a_figure_that_cannot_be_one_is_rejected(change, message):
    with pytest.raises(InputError, match=message):
        Study.of({"data": "x", "methods": ["base"], "published": [{**FIGURES, **change}]})
