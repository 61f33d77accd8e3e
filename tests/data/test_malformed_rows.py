"""A malformed row or table of a data set ends in a sentence that names its place and what was expected."""

import json

import pytest
from helpers.support import write_data as write

import fastreader as fr
from fastreader.data import SkippedRows
from fastreader.errors import InputError

MALFORMED = [
    (
        {"query": "q", "passages": {"is_selected": [0], "passage_text": ["t", "u"]}},
        "passages: expected a list, got an object",
    ),
    ({"query": "q", "passages": [{"is_selected": 0}]}, "passages[0]: missing key 'passage_text'"),
    ({"query": "q", "passages": [{"passage_text": " "}]}, "passages[0].passage_text: expected text that is not empty"),
    ({"query": "q", "passages": [], "answers": [3]}, "answers: expected a text, a list of texts, or an object"),
    ({"question": "q", "answer": "a", "context": [["T"]]}, "context[0]: expected an object, got a list of 1"),
    (
        {"question": "q", "answer": "a", "context": [["T", "s"]]},
        "context[0].sentences: expected a list, got the string 's'",
    ),
    ({"question": "q", "answer": "a", "context": {"title": ["T"]}}, "context[0]: missing key 'sentences'"),
    ({"question": "q", "answer": "a", "context": [["", [" "]]]}, "context[0]: expected text or a title, got neither"),
    ({"question": "q", "answer": 1, "context": [["T", ["s"]]]}, "answer: expected a text, a list of texts"),
    (
        {"question": "q", "context": [["T", ["s"]]], "supporting_facts": [["T"]]},
        "supporting_facts[0]: expected an object",
    ),
    ({"question": "q", "answer": "a", "evidence": "text"}, "evidence: passages are not read from this key"),
    ({"query": "q", "search_results": [{"page_result": "<html>"}]}, "search_results[0]: expected text or a title"),
    ({"query": "q", "search_results": [], "alt_ans": {"x": "y"}}, "alt_ans: expected a text, a list of texts"),
    (
        {"claim": "c", "label": "MAYBE"},
        "label: expected 'SUPPORTS', 'REFUTES', 'NOT ENOUGH INFO' or '', got the string 'MAYBE'",
    ),
    ({"claim": "", "label": "REFUTES"}, "claim: expected text that is not empty"),
    (
        {"question": "q", "answers": ["a"], "contexts": [{"title": "T", "score": "x", "text": "t"}]},
        "contexts[0].score: expected a number",
    ),
    ({"question": "q", "answers": ["a"], "contexts": "t"}, "contexts: expected a list, got the string 't'"),
    ({"question": "q", "answers": ["a"], "documents": [""]}, "documents[0].text: expected text that is not empty"),
    ({"question": "q", "answers": ["a"], "docs": [{"title": ""}]}, "docs[0]: missing key 'text'"),
    (
        {"question": "q", "docs": [], "qa_pairs": [{"question": "r"}]},
        "qa_pairs[0].short_answers: expected at least one text, got None",
    ),
    ({"question": "q", "idx_gold_in_corpus": 4, "answers": ["a"]}, "missing key 'text'"),
    ({"input": "q", "output": [{"answer": 4}]}, "output[0].answer: expected a text, a list of texts"),
    ({"input": "q", "output": [{}], "answers": ["a"]}, "answers: right answers are not read from this key"),
    (
        {"question": "q", "answer": "a", "context": "t", "supporting_facts": []},
        "context: expected a list, got the string",
    ),
    ({"question": "q", "context": "c", "answers": {"start": [3]}}, "answers: expected a text, a list of texts"),
    ({"Question": "q", "Answer": {"Type": "Numerical"}}, "answer: expected a text, a list of texts"),
    ({"question": "q", "entity_pages": {"title": ["T"]}, "answer": {"value": 3}}, "answer: expected a text, a list"),
    ({"question_text": "q", "document_text": "a", "annotations": []}, "missing key 'long_answer_candidates'"),
    (
        {
            "question_text": "q",
            "document_text": "a b",
            "annotations": [],
            "long_answer_candidates": [{"start_token": 0, "end_token": 9}],
        },
        "long_answer_candidates[0]: expected tokens from 0 to 2, got '0 to 9'",
    ),
    ({"question": "q", "paragraphs": [{"title": "T"}], "answer": "a"}, "paragraphs[0]: missing key 'paragraph_text'"),
    ({"query": "q", "positive": "t", "answer": ["a"]}, "positive: expected a list, got the string 't'"),
    ({"user_input": "q", "retrieved_contexts": [1]}, "retrieved_contexts[0]: expected a string, got the number 1"),
    ({"question": "q", "positive_ctxs": [{"title": "T", "text": 1}]}, "positive_ctxs[0].text: expected a string"),
    ({"question": "q", "reference": 1969}, "reference: expected"),
    ({"question": "q", "references": [3, 5]}, "references: expected"),
    (
        {"question": "q", "answer": ["a"], "retrieved_docs": [{"text": "t"}]},
        "retrieved_docs: passages are not read from this key",
    ),
    ({"question": "q", "answers": ["a"], "evidence": {"text": "t"}}, "evidence: passages are not read from this key"),
    (
        {"ambiguous_question": "q"},
        "missing key 'qa_pairs', got an object with the keys ambiguous_question; the nearest format is ASQA",
    ),
    (
        {"user_input": "q", "response": "a"},
        "missing key 'retrieved_contexts', got an object with the keys user_input, response",
    ),
    (
        {"data": [{"title": "T", "paragraphs": [{"context": "c", "qas": 3}]}]},
        "paragraph 1: expected an object with a list qas",
    ),
    (
        {"data": [{"title": "T", "paragraphs": [{"context": "c", "qas": [3]}]}]},
        "paragraph 1, question 1: expected an object",
    ),
]


@pytest.mark.parametrize(("row", "expected"), MALFORMED)
def test_a_malformed_row_ends_in_a_sentence(tmp_path, row, expected):
    path = write(tmp_path / "a.json", json.dumps(row))
    with pytest.raises(InputError) as raised:
        fr.load_examples(path)
    assert f": {expected}" in str(raised.value) or f", {expected}" in str(raised.value)
    assert str(raised.value).startswith(f"{path}, ")
    with pytest.warns(SkippedRows, match="skipped 1 row"):
        assert fr.load_examples(path, skip_errors=True) == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("subj\tobj\nX\tY\n", "line 1: expected a header line with question and answers, got 'subj, obj'"),
        ("question\tanswer\nq\n", "line 2: expected 2 columns, got 1"),
        ("who\t['a']\nwho\ta'\n", "line 2: expected two columns, a question and a list of answers"),
        ("question\tpassages\tanswer\nq\t[]\t3", ""),
        ("", "expected at least one example, got an empty file"),
    ],
)
def test_a_malformed_table_ends_in_a_sentence(tmp_path, content, expected):
    path = write(tmp_path / "a.tsv", content)
    if not expected:
        assert fr.load_examples(path)[0].answers == ["3"]
        return
    with pytest.raises(InputError) as raised:
        fr.load_examples(path)
    assert expected in str(raised.value) and str(raised.value).startswith(str(path))
