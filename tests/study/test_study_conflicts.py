"""Contradicting passages in a study: the rows of the direct calls, also added later, and the report's section."""

import csv
import json

import pytest
from helpers.scripted import ScriptedReader
from helpers.support import byte_tokenizer

import fastreader as fr
from fastreader.errors import InputError
from fastreader.passages.conflicts import Conflicts
from fastreader.report import Report
from fastreader.study import RunFolder, Study, run_study
from studies import data
from studies import run as run_scripted

METHODS, TOKENS = ["base", "closed_book"], byte_tokenizer(chat=True)
ROWS = [
    {"id": "two", "question": "Which river is in Cairo?", "answers": ["Nile"], "ctxs": [
        {"title": "Egypt", "text": "The Nile flows through Cairo."},
        {"title": "", "text": "The <b>Seine</b> flows through Cairo."},
        {"title": "", "text": "The Nile is in Cairo, says everybody."}]},
    {"id": "same", "question": "Which river is in Khartoum?", "answers": [], "ctxs": [
        {"title": "", "text": "The Nile."}, {"title": "", "text": "A river."}]},
    {"id": "one", "question": "Which river is in Paris?", "answers": [], "ctxs": [{"title": "", "text": "Seine."}]},
]  # fmt: skip


class Writing:
    """A reader that writes what the test says and scores with its model. Counts its passes."""

    def __init__(self, reader):
        self._reader, self.passes, self.other = reader, 0, "the Seine"

    def __getattr__(self, name):
        return getattr(self._reader, name)

    def generate(self, prompts, **options):
        read = [TOKENS.decode(list(prompt)) for prompt in prompts]
        texts = [self.other if "through" not in text and "Khartoum" not in text else "Nile" for text in read]
        return ScriptedReader(lambda text, i: text).generate(texts, **options)

    def loglikelihood(self, requests, **options):
        self.passes += 1
        return self._reader.loglikelihood(requests, **options)


def study_of(tmp_path, **more):
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return Study.of({"data": str(path), "readers": ["tiny"], "methods": METHODS, **more})


def run(study, folder, reader, **options):
    return run_study(study, folder, load=lambda name: reader, progress=False, **options)


def test_rows_are_those_of_the_direct_call_and_come_once(tmp_path, tiny_reader):
    reader, folder = Writing(tiny_reader), tmp_path / "run"
    run(study_of(tmp_path), folder, reader)
    assert RunFolder(folder).conflicts() == [] and not reader.passes
    assert "Contradicting passages" not in Report.of(folder).html()
    asks = study_of(tmp_path, conflicts=True)
    run(asks, folder, reader, resume=True)
    [row] = RunFolder(folder).conflicts()  # the others have one answer or one passage
    example = fr.load_examples(asks.data)[0]
    direct = fr.conflicts(tiny_reader, example, candidates=["Nile", "the Seine"])
    found = Conflicts.from_dict(row["conflicts"])
    assert (row["question_id"], row["reader"], row["error"]) == ("two", "tiny", None)
    assert found.candidates == direct.candidates and found.claims == direct.claims
    assert found.odd_scores == pytest.approx(direct.odd_scores, abs=1e-4)
    passes = reader.passes
    run(asks, folder, reader, resume=True)
    assert reader.passes == passes and len(RunFolder(folder).conflicts()) == 1
    costs = RunFolder(folder).read_json("costs.json")["tiny"]
    assert costs["run_tokens"] >= found.stats.computed_tokens


def test_a_method_added_later_gives_its_question_a_new_row(tmp_path, tiny_reader):
    reader, folder = Writing(tiny_reader), tmp_path / "run"
    run(study_of(tmp_path, conflicts=True), folder, reader)
    reader.other = "the Rhine"
    more = [*METHODS, {"method": "closed_book", "name": "again", "max_new_tokens": 3}]
    run(study_of(tmp_path, conflicts=True, methods=more), folder, reader, resume=True)
    [row] = RunFolder(folder).conflicts()
    assert row["conflicts"]["candidates"] == ["Nile", "the Seine", "the Rhine"]


def test_the_section_of_the_report(tmp_path, tiny_reader):
    folder = tmp_path / "run"
    run(study_of(tmp_path, conflicts=True), folder, Writing(tiny_reader))
    path = folder / "conflicts.jsonl"
    row = json.loads(path.read_text())
    scores = {"probabilities": [0.9, 0.1], "odd_scores": [0.1, 0.8, 0.1], "score": 0.9}
    kept = row["conflicts"] | {"consensus": 0, "claims": [0, 1, 0]} | scores
    long = {**row, "id": "long", "question_id": "same", "conflicts": None, "error": "too long"}
    path.write_text(json.dumps({**row, "conflicts": kept}) + "\n" + json.dumps(long) + "\n")
    report = Report.of(folder)
    assert (report.conflicts.compared, report.conflicts.failed) == (1, 1)
    [shown] = report.conflicts.rows
    wanted = {"score": 0.9, "passage": 2, "answer": "the Seine", "other": "Nile"}
    assert {name: shown[name] for name in wanted} == wanted
    page = report.html()
    assert "The passages of 1 of 1 questions contradict" in page and "2. The &lt;b&gt;Seine&lt;/b&gt; flows" in page
    report.write_tables(tmp_path)
    [line] = csv.DictReader((tmp_path / "conflicts.csv").open())
    assert line["question"] == ROWS[0]["question"] and line["other"] == "Nile"
    # A passage that states the consensus is odd if two answers are about equally probable.
    path.write_text(json.dumps({**row, "conflicts": kept | {"claims": [0, 0, 0]}}) + "\n")
    [shown] = Report.of(folder).conflicts.rows
    assert (shown["answer"], shown["other"]) == ("Nile", "the Seine")
    denied = {"claims": [0, None, 0], "denied": [[False, False], [True, False], [False, False]]}
    path.write_text(json.dumps({**row, "conflicts": kept | denied}) + "\n")
    [shown] = Report.of(folder).conflicts.rows
    assert (shown["answer"], shown["other"]) == ("not Nile", "Nile")
    path.write_text(json.dumps({**row, "conflicts": kept | {"score": 0.39}}) + "\n")
    assert Report.of(folder).conflicts.rows == []  # less than the threshold


def test_rows_of_an_earlier_version_are_not_shown(tmp_path, tiny_reader):
    folder = tmp_path / "run"
    run(study_of(tmp_path, conflicts=True), folder, Writing(tiny_reader))
    path = folder / "conflicts.jsonl"
    row = json.loads(path.read_text())
    old = {key: value for key, value in row["conflicts"].items() if key not in ("probabilities", "stated", "denied")}
    path.write_text(json.dumps({**row, "conflicts": old}) + "\n")
    found = Report.of(folder).conflicts
    assert (found.rows, found.compared, found.failed) == ([], 0, 0)


def test_a_passage_that_is_too_long_is_a_row_with_an_error(tmp_path, tiny_reader, monkeypatch):
    def fail(*arguments, **options):
        raise fr.errors.ContextOverflowError("passage 1: 900 tokens")

    monkeypatch.setattr("fastreader.study.extras.conflicts", fail)
    run(study_of(tmp_path, conflicts=True), tmp_path / "run", Writing(tiny_reader))
    [row] = RunFolder(tmp_path / "run").conflicts()
    assert row["conflicts"] is None and row["error"] == "passage 1: 900 tokens"


def test_a_reader_without_token_ids_is_rejected_by_name(tmp_path):
    methods = ["sure:base", "sure:no_retrieval"]
    study = Study.of({"data": data(tmp_path, 2), "readers": ["scripted"], "methods": methods, "conflicts": True})
    with pytest.raises(InputError, match="reader: expected one that plans and scores token ids"):
        run_scripted(study, tmp_path / "run")
