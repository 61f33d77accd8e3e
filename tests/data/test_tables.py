"""Examples from tables in memory: lists of rows and datasets.Dataset, with the keys that files have."""

import itertools
import json
import warnings

import pytest
from helpers.support import QUESTIONS

import fastreader as fr
from fastreader.data import SkippedRows, iter_examples
from fastreader.errors import InputError

DPR = {"question": "Who?", "answers": ["A"], "ctxs": [{"id": "p", "title": "T", "text": "x", "score": 1.5}], "topic": 3}
FLASH = {"id": "7", "question": "Who?", "golden_answers": ["A"], "output": {"retrieval_result": [{"contents": "T\nx"}]}}
RANK = {"query": {"text": "Who?", "qid": "q"}, "candidates": [{"docid": "d", "score": 2.0, "doc": {"text": "x"}}]}


def rows():
    return [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]


def test_rows_are_read_as_a_file_is(tmp_path):
    assert fr.load_examples(rows()) == fr.load_examples(QUESTIONS)
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, [DPR, FLASH, RANK])))
    assert fr.load_examples([DPR, FLASH, RANK]) == fr.load_examples(tmp_path / "a.jsonl")
    examples = fr.load_examples(QUESTIONS)
    assert fr.load_examples(examples) == examples
    assert fr.load_examples(iter(rows()), limit=2) == examples[:2]
    assert list(itertools.islice(iter_examples(itertools.cycle(rows())), 2)) == examples[:2]


def test_none_is_a_missing_value_and_columns_are_objects():
    sparse = {**DPR, "candidates": None, "id": None, "topic": None, "output": None}
    sparse["ctxs"] = [{**DPR["ctxs"][0], "isgold": None, "lang": None}]
    (wanted,) = fr.load_examples([{k: v for k, v in DPR.items() if k != "topic"}])
    assert fr.load_examples([sparse]) == [wanted]
    columns = {"id": ["p", "r"], "title": ["T", None], "text": ["x", "y"], "score": [1.5, 0.5]}
    (found,) = fr.load_examples([{**DPR, "ctxs": columns}])
    assert [(p.id, p.title, p.text, p.score) for p in found.passages] == [("p", "T", "x", 1.5), ("r", "", "y", 0.5)]


def test_a_dataset():
    datasets = pytest.importorskip("datasets", reason="lm-eval brings datasets")
    dataset = datasets.Dataset.from_list(rows())
    examples = fr.load_examples(QUESTIONS)
    assert fr.load_examples(dataset) == examples
    assert fr.load_examples(dataset.to_iterable_dataset(), limit=3) == examples[:3]
    assert fr.load_examples(dataset.select([1, 0])) == [examples[1], examples[0]]
    mixed = datasets.Dataset.from_list([{**DPR, "candidates": ["a", "b"]}, DPR])
    assert [e.candidates for e in fr.load_examples(mixed)] == [["a", "b"], []]
    with pytest.raises(InputError, match="path: expected"):
        fr.load_examples(datasets.DatasetDict({"train": dataset}))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "path: expected at least one example, got no row"),
        ([DPR, 3], r"path\[1\]: expected a mapping or an Example, got 3"),
        ([DPR, {**DPR, "question": " "}], r"path\[1\]: question: expected text that is not empty"),
        ([{"text": "x"}], r"path\[0\]: expected the keys question and ctxs"),
        ([{**DPR, "ctxs": {"id": ["p"], "text": ["x", "y"]}}], r"path\[0\]: ctxs: expected a list"),
        ({"data": [DPR]}, "path: expected"),
        (7, "path: expected"),
    ],
)
def test_tables_that_do_not_fit(table, message):
    with pytest.raises(InputError, match=message):
        fr.load_examples(table)


def test_rows_are_skipped_with_one_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(fr.load_examples([DPR, {"question": 1}, DPR], skip_errors=True)) == 2
    (warning,) = caught
    assert issubclass(warning.category, SkippedRows) and "path: skipped 1 row; the first: path[1]" in str(
        warning.message
    )
