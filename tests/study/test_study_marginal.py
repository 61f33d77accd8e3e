"""The method `marginal` in a study, and the report's curve of risk against coverage."""

import pytest
from helpers.support import byte_tokenizer, tiny_llama

import fastreader as fr
from fastreader.errors import InputError
from fastreader.moi import marginal_answer
from fastreader.report.plots.answers import RISK, risk_by_coverage
from fastreader.report.study_data import Missing, StudyRun
from fastreader.statistics import risk_coverage
from fastreader.study import RunFolder, Study, run_study
from fastreader.study.registry import check
from studies import data, run, study_of


def test_in_a_study(tmp_path):
    reader = fr.Reader.load((tiny_llama(), byte_tokenizer(chat=True)), device="cpu", precision="exact")
    methods = ["base", "marginal"]
    values = {"data": data(tmp_path, 2), "readers": ["tiny"], "methods": methods, "max_new_tokens": 4}
    run_study(Study.of(values), tmp_path / "run", load=lambda name: reader, progress=False)
    rows = [row for row in RunFolder(tmp_path / "run").rows() if row["method"] == "marginal"]
    examples = fr.load_examples(values["data"])
    for row, example in zip(rows, examples, strict=True):
        same = marginal_answer(reader, example, max_new_tokens=4)
        assert row["answer"] == same.text and row["error"] is None
        assert row["trace"]["confidence"] == pytest.approx(same.confidence, abs=1e-4)
        assert row["trace"]["candidates"] == same.candidates


def test_risk_in_the_report(tmp_path):
    """Two methods of the scripted reader, whose confidences and outcomes are written into the rows."""
    run(study_of(tmp_path, ["sure:base", "sure:no_retrieval"]), tmp_path / "run")
    found = StudyRun(tmp_path / "run")
    with pytest.raises(Missing, match="no method states a confidence"):
        risk_by_coverage(found)
    confidences = [0.2, 0.9, 0.5, 0.5, 0.7]
    rows = found.of(found.conditions[0])
    for row, value in zip(rows, confidences, strict=True):
        row["trace"]["confidence"], row["contained"] = value, float(value > 0.5)
    table = risk_by_coverage(found)
    curve = risk_coverage(confidences, [float(value > 0.5) for value in confidences])
    assert [row["risk"] for row in table] == curve.risk.tolist() and table[0]["area"] == curve.area
    assert {row["answers"] for row in table} == {5} and len({row["method"] for row in table}) == 1
    assert RISK.draw(table).axes[0].get_legend().texts[0].get_text().endswith(f"(area {curve.area:.3f})")


def test_rejects_unknown_orderings():
    study = {"data": "q.jsonl", "readers": ["tiny"], "methods": [{"method": "marginal", "permutations": "sorted"}]}
    with pytest.raises(InputError, match="sorted"):
        check(Study.of(study))
