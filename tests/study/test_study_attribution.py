"""Attribution in a study: the rows of the direct calls, also added later, and the report's figure and list."""

import json

import numpy as np
import pytest
from helpers.scripted import ScriptedReader

import fastreader as fr
from fastreader.errors import ContextOverflowError, InputError
from fastreader.report import Report
from fastreader.report.browse import browser_data
from fastreader.report.study_data import StudyRun
from fastreader.study import RunFolder, Study, run_study

QUESTIONS = [
    {"id": "two", "question": "Which river is in Cairo?", "answers": ["Nile"], "ctxs": [
        {"title": "", "text": "The Seine is in Paris.", "isgold": False},
        {"title": "Egypt", "text": "The Nile is in Cairo.", "isgold": True}]},
    {"id": "later", "question": "Which river is in Paris?", "answers": ["Seine"], "ctxs": [
        {"title": "", "text": "The Seine is in Paris."}]},
    {"id": "bare", "question": "Which river is long?", "answers": ["Nile"], "ctxs": []},
]  # fmt: skip


class Writing:
    """A reader that writes "Nile" and scores with its model. Counts its passes."""

    def __init__(self, reader):
        self._reader, self.passes = reader, 0

    def __getattr__(self, name):
        return getattr(self._reader, name)

    def generate(self, prompts, **options):
        return ScriptedReader(lambda text, i: "Nile").generate(["x"] * len(prompts), **options)

    def score(self, *arguments, **options):
        self.passes += 1
        return self._reader.score(*arguments, **options)


def study_of(tmp_path, **more):
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    return Study.of({"data": str(path), "readers": ["tiny"], "methods": ["base", "closed_book"], **more})


def run(study, folder, reader, **options):
    return run_study(study, folder, load=lambda name: reader, progress=False, **options)


def test_rows_are_those_of_the_direct_call_and_come_once(tmp_path, tiny_reader):
    reader, folder = Writing(tiny_reader), tmp_path / "run"
    run(study_of(tmp_path), folder, reader)
    assert RunFolder(folder).attribution() == [] and not reader.passes
    [absent] = [s for s in Report.of(folder).sections if s.chart.key == "attribution"]
    assert absent.table is None and "attribution = 20" in absent.why_not
    asks = study_of(tmp_path, attribution=1)
    run(asks, folder, reader, resume=True)
    [row] = RunFolder(folder).attribution()  # one question, whose methods give the same answer
    direct = fr.attribute(tiny_reader, fr.load_examples(asks.data)[0], answer="Nile")
    found = fr.Attribution.from_dict(row["attribution"])
    assert (row["question_id"], row["reader"], row["answer"], row["error"]) == ("two", "tiny", "Nile", None)
    for name in ("shapley", "alone", "left_out"):
        assert getattr(found, name) == pytest.approx(getattr(direct, name), abs=1e-4)
    assert found.plot().axes[0].get_xlabel() == "log P(Nile), nats"
    passes = reader.passes
    run(asks, folder, reader, resume=True)
    assert reader.passes == passes
    run(study_of(tmp_path, attribution=3), folder, reader, resume=True)  # a question without passages has none
    assert [row["question_id"] for row in RunFolder(folder).attribution()] == ["two", "later"]


def test_the_report_draws_it_by_rank_and_lists_it_by_answer(tmp_path, tiny_reader):
    folder = tmp_path / "run"
    run(study_of(tmp_path, attribution=2), folder, Writing(tiny_reader))
    shapley = {row["question_id"]: row["attribution"]["shapley"] for row in RunFolder(folder).attribution()}
    report = Report.of(folder)
    [section] = [s for s in report.sections if s.chart.key == "attribution"]
    found = {(row["method"], row["passages"], row["rank"]): row["shapley"] for row in section.table}
    for method in ("base", "closed_book"):
        assert found[method, "not gold", 1] == pytest.approx(shapley["two"][0])
        assert found[method, "gold", 2] == pytest.approx(shapley["two"][1])
        assert found[method, "all", 1] == pytest.approx(np.mean([shapley["two"][0], shapley["later"][0]]))
    assert 'id="attribution"' in report.html()
    data, _ = browser_data(StudyRun(folder))
    two, later, bare = (question["rows"] for question in data["questions"])
    shown = two[0]["trace"]["attribution"]
    assert shown["shapley"] == pytest.approx(shapley["two"], abs=1e-4) and len(shown["alone"]) == 2
    assert "attribution" in later[0]["trace"] and "attribution" not in bare[0].get("trace", {})


def test_passages_that_do_not_fit_are_an_error_of_their_row(tmp_path, tiny_reader, monkeypatch):
    def fail(*_, **__):
        raise ContextOverflowError("the prompt has 900 tokens")

    monkeypatch.setattr("fastreader.study.extras.attribute", fail)
    folder = tmp_path / "run"
    run(study_of(tmp_path, attribution=1), folder, Writing(tiny_reader))
    [row] = RunFolder(folder).attribution()
    assert row["attribution"] is None and row["error"] == "the prompt has 900 tokens"
    [absent] = [s for s in Report.of(folder).sections if s.chart.key == "attribution"]
    assert absent.table is None and "900 tokens" in absent.why_not


def test_a_count_below_zero_is_rejected(tmp_path):
    with pytest.raises(InputError, match="attribution"):
        study_of(tmp_path, attribution=-1)
