"""What other programs write into rows and documents: missing values, scalars of NumPy, answers under other keys."""

import gzip
import json
import math

import numpy as np
import pytest
from helpers.support import write_data as write

import fastreader as fr
from fastreader.data import SkippedRows, load_beir, load_passages, load_questions, save_examples
from fastreader.data.answers import unread_answers
from fastreader.data.documents import as_passages
from fastreader.errors import InputError

pd = pytest.importorskip("pandas")
CTXS = [{"text": "t"}]


def from_table(tmp_path, row):
    return fr.load_examples([row])[0]


def from_file(tmp_path, row):
    return fr.load_examples(write(tmp_path / "q.jsonl", json.dumps(row) + "\n"))[0]


EITHER = pytest.mark.parametrize("read", [from_table, from_file])
FORMATS = {
    "dpr": lambda about, passage: {"question": "q", "ctxs": [{"text": "t", **passage}], **about},
    "flashrag": lambda about, passage: {
        "question": "q",
        "output": {"retrieval_result": [{"contents": "t", **passage}]},
        **about,
    },
    "rank_llm": lambda about, passage: {"query": "q", "candidates": [{"doc": "t", **passage}], **about},
}


@EITHER
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("missing", [None, math.nan])
def test_optional_keys_may_be_missing_in_any_format(tmp_path, read, format, missing):
    about = dict.fromkeys(["answers", "golden_answers", "id"], missing)
    passage = dict.fromkeys(["id", "docid", "score", "isgold", "hasanswer"], missing)
    found = read(tmp_path, FORMATS[format](about, passage))
    assert (found.answers, found.id) == ([], None)
    [passage] = found.passages
    assert (passage.text, passage.id, passage.score, passage.is_gold) == ("t", None, None, None)


@EITHER
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("answers", ["a", "b"], ["a", "b"]),
        ("golden_answers", ["a"], ["a"]),
        ("answer", "a", ["a"]),
        ("answer", ["a", "b"], ["a", "b"]),
        ("answer", [["a", "b"], ["c"]], ["a", "b", "c"]),
        ("answer", {"value": "a", "aliases": ["a", "b"]}, ["a", "b"]),
        ("possible_answers", '["a", "b"]', ["a", "b"]),
        ("ground_truth", "[sic] a", ["[sic] a"]),
        ("ground_truths", ["a"], ["a"]),
        ("reference", "a", ["a"]),
        ("references", ["a"], ["a"]),
    ],
)
def test_right_answers_are_read_from_the_keys_of_other_data_sets(tmp_path, read, format, key, value, wanted):
    found = read(tmp_path, FORMATS[format]({key: value}, {}))
    assert found.answers == wanted and key not in found.metadata


def test_the_first_key_with_answers_counts_and_others_are_kept(tmp_path):
    row = {"question": "q", "ctxs": CTXS, "answers": [], "answer": "what a model wrote", "ground_truth": "right"}
    found = fr.load_examples([row])[0]
    assert found.answers == ["right"] and found.metadata == {"answer": "what a model wrote"}
    save_examples([found], tmp_path / "a.jsonl")
    assert fr.load_examples(tmp_path / "a.jsonl") == [found]
    assert load_questions(write(tmp_path / "q.jsonl", '{"question": "q", "answer": ["a"]}\n'))[0].answers == ["a"]
    lost = fr.Example("q", [fr.Passage("t")], metadata={"answer": 2})
    with pytest.raises(InputError, match="metadata: expected no key 'answer'"):
        save_examples([lost], tmp_path / "b.jsonl")


@pytest.mark.parametrize("value", [2, True, [2], [["a"], 3], {"text": 4}, {"spans": ["a"]}, [{"start": 1}]])
@pytest.mark.parametrize("key", ["answer", "ground_truths", "possible_answers"])
def test_answers_that_cannot_be_read_are_an_error(tmp_path, key, value):
    for row in ({"question": "q", "ctxs": CTXS}, {"question": "q"}):
        with pytest.raises(InputError, match=rf"path\[0\]: {key}: expected a text, a list of texts, or an object"):
            fr.load_examples([{**row, key: value}])
    with pytest.raises(InputError, match=f"line 1: {key}: expected a text, a list of texts, or an object"):
        load_questions(write(tmp_path / "q.jsonl", json.dumps({"question": "q", key: value})))


@EITHER
def test_a_passage_without_text_has_its_title_as_text(tmp_path, read):
    for blank in ("", "  ", None):
        found = read(tmp_path, {"question": "q", "ctxs": [{"title": "Nile", "text": blank}, {"text": "t"}]})
        assert [(p.title, p.text) for p in found.passages] == [("", "Nile"), ("", "t")]
    found = read(tmp_path, {"question": "q", "ctxs": [{"title": "Nile"}]})
    assert found.passages == [fr.Passage("Nile")]
    found = read(tmp_path, FORMATS["flashrag"]({}, {"contents": "Nile\n"}))
    assert found.passages == [fr.Passage("Nile")]
    found = read(tmp_path, FORMATS["rank_llm"]({}, {"doc": {"title": "Nile", "segment": ""}}))
    assert found.passages == [fr.Passage("Nile")]
    assert load_passages(write(tmp_path / "p.jsonl", '{"title": "Nile"}\n')) == [fr.Passage("Nile")]
    assert (
        as_passages([{"title": "Nile"}, {"title": "Nile", "text": ""}], allow_blank=False) == [fr.Passage("Nile")] * 2
    )


@EITHER
@pytest.mark.parametrize("format", FORMATS)
def test_a_question_may_have_no_passages(tmp_path, read, format):
    row = FORMATS[format]({}, {})
    (row if format != "flashrag" else row["output"]).update(
        {"dpr": {"ctxs": []}, "flashrag": {"retrieval_result": []}, "rank_llm": {"candidates": []}}[format]
    )
    assert read(tmp_path, row).passages == []


def test_a_document_of_beir_without_any_text_is_skipped(tmp_path):
    write(tmp_path / "c", '{"_id": "d1", "text": "a"}\n{"_id": "d2", "title": "", "text": " "}\n')
    write(tmp_path / "q", '{"_id": "q1", "text": "q"}\n')
    write(tmp_path / "run", "q1 Q0 d2 1 2.0 x\nq1 Q0 d1 2 1.0 x\n")
    with pytest.warns(SkippedRows, match="skipped 1 row.*line 2: expected text or a title"):
        [example] = load_beir(tmp_path / "c", tmp_path / "q", tmp_path / "run")
    assert [p.id for p in example.passages] == ["d1"]


@pytest.mark.parametrize("whole", [5, np.int64(5), np.int8(5), 5.0, np.float64(5)])
def test_identifiers_are_numbers_of_any_library(whole):
    [example] = fr.load_examples([{"id": whole, "question": "q", "ctxs": [{"id": whole, "text": "t"}]}])
    assert (example.id, example.passages[0].id) == ("5", "5")
    assert as_passages([{"id": whole, "text": "t"}])[0].id == "5"


@pytest.mark.parametrize("missing", [None, math.nan, np.float32("nan"), pd.NA, pd.NaT])
def test_missing_values_of_tables(missing):
    row = {"text": "a", "title": missing, "id": missing, "score": missing, "note": missing}
    assert as_passages([row]) == [fr.Passage("a")]
    question = {"question": "q", "ctxs": [row], "answers": missing, "id": missing, "candidates": missing}
    assert fr.load_examples([question]) == [fr.Example("q", [fr.Passage("a")])]


def test_rows_of_pandas_with_arrays():
    frame = pd.DataFrame(
        {
            "question": ["q", "r"],
            "answers": [np.array(["a"]), None],
            "ctxs": [np.array([{"text": "t", "score": np.float32(0.5), "isgold": np.bool_(True)}]), [{"text": "u"}]],
        }
    )
    first, second = fr.load_examples(frame.to_dict("records"))
    assert first == fr.Example("q", [fr.Passage("t", score=0.5, is_gold=True)], ["a"])
    assert second == fr.Example("r", [fr.Passage("u")])


@pytest.mark.parametrize("number", [3, np.float32(0.25), np.float16(2), np.int64(7)])
def test_scores_are_numbers_of_any_library(number):
    assert as_passages([{"text": "a", "score": number}])[0].score == float(number)


def test_numbers_that_json_lacks(tmp_path):
    path = write(
        tmp_path / "a.jsonl", '{"question": "q", "note": NaN, "list": [NaN], "ctxs": [{"text": "t", "x": NaN}]}\n'
    )
    [found] = fr.load_examples(path)
    assert found.metadata == {"note": None, "list": [None]} and found.passages[0].metadata == {"x": None}
    for row in ('{"question": "q", "note": -Infinity, "ctxs": []}', '{"question": "q", "note": [1e999], "ctxs": []}'):
        with pytest.raises(InputError, match="line 1: note: expected finite numbers"):
            fr.load_examples(write(tmp_path / "b.jsonl", row + "\n"))


def test_half_a_surrogate_pair_in_metadata_is_kept(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"question": "q", "note": "bad \\ud835", "ctxs": [{"text": "t"}]}\n')
    examples = fr.load_examples(path)
    save_examples(examples, tmp_path / "b.jsonl")
    assert fr.load_examples(tmp_path / "b.jsonl") == examples


CONTAINERS = {
    "zst": (b"\x28\xb5\x2f\xfd" + bytes(20), "zst"),
    "xz": (b"\xfd7zXZ\x00" + bytes(20), "xz"),
    "bz2": (b"BZh91AY&SY", "bz2"),
    "zip": (b"PK\x03\x04" + bytes(20), "zip"),
    "parquet": (b"PAR1\x15\x04", "Parquet"),
    "arrow": (b"\xff\xff\xff\xff\x10\x00", "Arrow"),
    "pickle": (b"\x80\x05\x95", "pickle"),
    "sqlite": (b"SQLite format 3\x00", "SQLite"),
    "pdf": (b"%PDF-1.7\n", "PDF"),
    "tar": (b"a.jsonl".ljust(257, b"\x00") + b"ustar\x0000", "tar"),
    "twice": (gzip.compress(gzip.compress(b"{}")), "gzip data"),
    "packed tar": (gzip.compress(b"a.jsonl".ljust(257, b"\x00") + b"ustar\x0000"), "tar"),
    "utf-16": ('{"question": "q"}'.encode("utf-16"), "UTF-16"),
    "utf-16-be": ('{"question": "q"}'.encode("utf-16-be"), "UTF-16"),
    "utf-16-le": ('{"question": "q"}'.encode("utf-16-le"), "UTF-16"),
    "utf-32": ('{"question": "q"}'.encode("utf-32"), "UTF-32"),
}


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a"])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_containers_and_encodings_are_named(tmp_path, kind, name):
    content, named = CONTAINERS[kind]
    (tmp_path / name).write_bytes(content)
    for read in (fr.load_examples, load_questions, load_passages):
        with pytest.raises(InputError, match=rf"{name}: expected UTF-8 text, .*got .*{named}"):
            read(tmp_path / name)
    with pytest.raises(InputError, match=rf"{name}: expected UTF-8 text, got "):
        fr.Template.load(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("a.csv", "question,answers\nq,a\n", "CSV"),
        ("a.jsonl", "question\tanswers\nq\ta\n", "TSV"),
        ("a.jsonl", "<html>\n", "XML or HTML"),
        ("a.jsonl", json.dumps([{"question": "q"}], indent=1), "list"),
        ("a.jsonl", json.dumps({"question": "q"}, indent=1), "object on several lines"),
    ],
)
def test_other_texts_are_named(tmp_path, name, text, named):
    for read in (fr.load_examples, load_questions, load_passages) if name == "a.jsonl" else (fr.load_examples,):
        with pytest.raises(InputError, match=named):
            read(write(tmp_path / name, text))


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q"},
        {"query": "q", "answers": None},
        {"question": "q", "context": 3},
        {"ctxs": [{"text": "t"}]},
        {"results": []},
        {},
    ],
)
def test_unknown_formats_are_answered_with_those_that_are_read(row):
    with pytest.raises(InputError) as caught:
        fr.load_examples([row])
    for name in ("Lost in the Middle", "DPR", "FlashRAG", "rank_llm"):
        assert name in str(caught.value)


def test_keys_that_may_hold_right_answers_are_named():
    rows = [{"question": "q", "ctxs": CTXS, "gold_answer": 2, "gold_label": "B", "topic": 3}]
    caution = unread_answers(fr.load_examples(rows))
    assert "not under 'gold_answer', 'gold_label'" in caution and "ground_truth" in caution
    assert unread_answers(fr.load_examples([*rows, {"question": "q", "ctxs": CTXS, "answer": "a"}])) == ""
    assert unread_answers(fr.load_examples([{"question": "q", "ctxs": CTXS}])) == ""
