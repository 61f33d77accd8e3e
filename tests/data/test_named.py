"""Data sets by the names of the libraries datasets and ir_datasets."""

import json
import sys
from types import ModuleType
from typing import NamedTuple

import pytest
from helpers.commands import run
from helpers.support import QUESTIONS

import fastreader as fr
from fastreader.data import load_questions
from fastreader.errors import InputError, MissingExtraError
from fastreader.study import Study
from fastreader.study.cells import questions_of

LINES = QUESTIONS.read_text(encoding="utf-8").splitlines()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that the real library loads, in the working folder, with two splits of the questions."""
    datasets = pytest.importorskip("datasets", reason="lm-eval brings datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "train.jsonl").write_text("\n".join(LINES[:2]), encoding="utf-8")
    (tmp_path / "made" / "test.jsonl").write_text("\n".join(LINES[2:]), encoding="utf-8")
    return tmp_path


def test_a_folder_of_datasets_is_read_as_its_files(folder):
    examples = fr.load_examples(QUESTIONS)
    assert fr.load_examples("datasets:made:test") == examples[2:]
    assert fr.load_examples(f"datasets:{folder}/made:train", limit=1) == examples[:1]
    assert fr.load_examples("datasets:./made:train[1:]") == examples[1:2]
    assert [e.question for e in load_questions("datasets:made:train")] == [e.question for e in examples[:2]]
    with pytest.raises(InputError, match="datasets:made: expected one of the splits train, test after a colon"):
        fr.load_examples("datasets:made")
    with pytest.raises(InputError, match=r'datasets:made:dev: datasets cannot load it: Unknown split "dev"'):
        fr.load_examples("datasets:made:dev")
    (folder / "made" / "test.jsonl").write_text('{"question": "Who?", "ctxs": 3}', encoding="utf-8")
    (folder / "made" / "train.jsonl").unlink()
    with pytest.raises(InputError, match=r"datasets:made\[0\]: ctxs: expected a list"):
        fr.load_examples("datasets:made")


def test_commands_and_studies_take_the_name(folder):
    run("convert", "datasets:made:train", "out.jsonl")
    assert fr.load_examples("out.jsonl") == fr.load_examples(QUESTIONS)[:2]
    (folder / "study.toml").write_text('data = "datasets:made:train"\nreaders = ["r"]\nmethods = ["base"]\n')
    study = Study.load(folder / "study.toml")
    assert study.data == "datasets:made:train"
    assert [e.question for e in questions_of(study)] == [e.question for e in fr.load_examples(QUESTIONS)[:2]]
    failed = run("ask", "datasets:a/b", "--dry-run", expect=2)
    assert "datasets:a/b: datasets cannot load it: Couldn't reach 'a/b'" in " ".join(failed.stderr.split())


def test_the_configuration_is_the_third_part(folder, monkeypatch):
    calls = []
    monkeypatch.setattr(
        "datasets.load_dataset", lambda *a, **k: calls.append((*a, k["split"])) or [json.loads(LINES[0])]
    )
    for name in ("a", "a/b", "a/b/c", "a/b:s", "a/b/c:train[:3]"):
        assert fr.load_examples(f"datasets:{name}") == fr.load_examples(QUESTIONS, limit=1)
    assert calls == [
        ("a", None),
        ("a/b", None),
        ("a/b", "c", None),
        ("a/b", "s"),
        ("a/b", "c", "train[:3]"),
    ]
    for name in ("", "a/b/c/d", "a//c", ":s"):
        with pytest.raises(InputError, match="path: expected datasets:OWNER/NAME, with /CONFIG and :SPLIT"):
            fr.load_examples(f"datasets:{name}")


def test_an_existing_path_stays_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("datasets:q", "ir_datasets:q"):
        (tmp_path / name).write_text("\n".join(LINES), encoding="utf-8")
        assert fr.load_examples(name) == fr.load_examples(QUESTIONS)
    with pytest.raises(InputError, match="path: expected a path"):
        fr.load_examples("datasets:a\0b")


@pytest.mark.parametrize(("name", "extra"), [("datasets:a", "datasets"), ("ir_datasets:a", "ir-datasets")])
def test_without_the_library_the_error_names_the_extra(monkeypatch, name, extra):
    monkeypatch.setitem(sys.modules, name.partition(":")[0], None)
    with pytest.raises(MissingExtraError, match=f"the extra {extra} of fastreader"):
        fr.load_examples(name)


class Query(NamedTuple):
    query_id: str
    text: str

    def default_text(self):
        return self.text


class Answered(NamedTuple):
    query_id: str
    text: str
    answers: tuple

    def default_text(self):
        return self.text


class Titled(NamedTuple):
    doc_id: str
    title: str
    body: str


class Marked(NamedTuple):
    doc_id: str
    title: str
    marked: str

    def default_text(self):
        return f"{self.title} {self.marked}"


class Hit(NamedTuple):
    query_id: str
    doc_id: str
    score: float


class Grade(NamedTuple):
    query_id: str
    doc_id: str
    relevance: int


class Collection:
    """A data set of ir_datasets with the parts that are given."""

    def __init__(self, queries, hits=None, grades=None):
        self.queries, self.hits, self.grades = queries, hits, grades
        self.documents = {"d1": Titled("d1", "T", "x"), "d2": Marked("d2", "U", "y")}
        self.asked = []

    def has_docs(self):
        return True

    def has_queries(self):
        return bool(self.queries)

    def has_scoreddocs(self):
        return self.hits is not None

    def has_qrels(self):
        return self.grades is not None

    def queries_cls(self):
        return type(self.queries[0])

    def queries_iter(self):
        return iter(self.queries)

    def scoreddocs_iter(self):
        return iter(self.hits)

    def qrels_iter(self):
        return iter(self.grades)

    def docs_store(self):
        return self

    def get_many(self, ids):
        self.asked.append(list(ids))
        return {i: self.documents[i] for i in ids if i in self.documents}


@pytest.fixture
def collections(monkeypatch):
    """The data sets that the library has, by name."""
    module, known = ModuleType("ir_datasets"), {}
    module.load = lambda name: known[name]
    monkeypatch.setitem(sys.modules, "ir_datasets", module)
    return known


def test_queries_of_ir_datasets_come_with_their_scored_documents(collections):
    hits = [Hit("q2", "d1", 1.0), Hit("q1", "d1", 2.0), Hit("q1", "d2", 3.0)]
    found = collections["a/b"] = Collection([Query("q1", "who?"), Query("q2", "why?"), Query("q3", "how?")], hits)
    first, second, third = fr.load_examples("ir_datasets:a/b")
    assert first == fr.Example("who?", [fr.Passage("U y", "", "d2", 3.0), fr.Passage("x", "T", "d1", 2.0)], [], id="q1")
    assert [p.id for p in second.passages] == ["d1"] and (third.question, third.passages) == ("how?", [])
    found.grades = [Grade("q1", "d1", 1), Grade("q2", "d1", 0)]
    assert [[p.is_gold for p in e.passages] for e in fr.load_examples("ir_datasets:a/b")] == [
        [False, True],
        [False],
        [],
    ]
    found.asked.clear()
    assert len(fr.load_examples("ir_datasets:a/b", limit=1)) == 1 and found.asked == [["d2", "d1"]]
    collections["answers"] = Collection([Answered("q", "who?", ("Ann", "Bob"))])
    assert fr.load_examples("ir_datasets:answers") == [fr.Example("who?", [], ["Ann", "Bob"], id="q")]


def test_data_sets_of_ir_datasets_that_cannot_be_read(collections):
    collections["plain"] = Collection([Query("q", "who?")])
    with pytest.raises(InputError, match="ir_datasets:plain: expected queries with scoreddocs or with answers"):
        fr.load_examples("ir_datasets:plain")
    with pytest.raises(InputError, match="ir_datasets:none: ir_datasets cannot load it: 'none'"):
        fr.load_examples("ir_datasets:none")
    collections["lost"] = Collection([Query("q", "who?")], [Hit("q", "d9", 1.0)])
    with pytest.raises(InputError, match="scoreddocs of 'q': expected documents of the data set, got 'd9'"):
        fr.load_examples("ir_datasets:lost")
    collections["broken"] = Collection([Query("q", "who?")], [])
    collections["broken"].docs_store = lambda: (_ for _ in ()).throw(RuntimeError("manual copy needed"))
    with pytest.raises(InputError, match="ir_datasets:broken: ir_datasets cannot load it: manual copy needed"):
        fr.load_examples("ir_datasets:broken")
