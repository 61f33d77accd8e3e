"""benchmarks/eor_study.py on answers made here: the control, the analysis and the report."""

import importlib.util
import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from eor_cases import CountingReader, simulate

from fastreader.data import Passage
from fastreader.eor import Answers, Document, correctness
from fastreader.jsonl import ResultLog, iter_results

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "eor_study.py"
specification = importlib.util.spec_from_file_location("eor_study", SCRIPT)
eor_study = importlib.util.module_from_spec(specification)
specification.loader.exec_module(eor_study)
NAMES = ["A@2", "B@2", "ReFree"]


@pytest.fixture
def study(tmp_path):
    """Forty questions answered by three retrievers, and the control of a reader that answers what it reads first."""
    texts, _ = simulate(0, 40, [0.7, 0.6, 0.4])
    arguments = Namespace(
        data=Path("data.jsonl"), pool=Path("pool.jsonl"), output=tmp_path / "out.jsonl", report=None, retrievers=NAMES,
        encoder="none", max_new_tokens=4, temperature=0.7, group=3, seed=0, starts=2, choose_by="contained",
        similarities=["exact", "f1"],
    )  # fmt: skip
    reader = CountingReader(write=lambda prompt, i: prompt.split("\n\n")[1] + ("" if i == 0 else f" {i}"))
    with ResultLog(arguments.output, settings=eor_study.settings(arguments, reader)) as log:
        for q, row in enumerate(texts):
            documents = [Document(n, [Passage(t), Passage("other")]) for n, t in zip(NAMES[:2], row, strict=False)]
            answers = Answers(f"q{q}", NAMES, [*row], documents=[*documents, Document("ReFree")], right=["right"])
            log.append(str(q), {k: v for k, v in answers.to_dict().items() if k != "id"})
    eor_study.control(arguments, reader)
    return arguments, reader


def test_the_control_reads_the_chosen_retriever_as_often_as_there_are_retrievers(study):
    arguments, reader = study
    rows = eor_study.load_rows(arguments.output)
    correct = correctness(rows, "contained")
    first = eor_study.half(40, 0)
    assert first.sum() == 20
    chosen = [NAMES[correct[part].mean(axis=0).argmax()] for part in (first, ~first)]
    assert eor_study.best_of_halves(arguments, rows) == chosen
    for row in iter_results(eor_study.control_file(arguments)):
        name, _, q = row["id"].partition("/")
        own = rows[int(q)].texts[NAMES.index(name)]
        assert name in chosen and len(row["orders"]) == len(row["samples"]) == 3
        assert row["orders"][0] == own and set(row["orders"]) <= {own, "other"}
        assert row["samples"] == [own, f"{own} 1", f"{own} 2"]
    asked = len(reader.prompts)
    eor_study.control(arguments, reader)
    assert len(reader.prompts) == asked  # all of it is on the disk


def test_nothing_is_reported_on_what_it_was_learned_from(study):
    arguments, _ = study
    rows = eor_study.load_rows(arguments.output)
    first = eor_study.half(40, 0)
    correct = correctness(rows, "em")
    value, learned = eor_study.crossed(arguments, arguments.similarities, [rows, rows], "em", first)
    # With the first half's answers changed, the second half's figures come from other weights; the first half's
    # weights, learned on the second, stay.
    changed = [replace(r, texts=["x", "y", "right"]) if f else r for r, f in zip(rows, first, strict=True)]
    again, relearned = eor_study.crossed(arguments, arguments.similarities, [changed, changed], "em", first)
    assert relearned[1] == {**learned[1], "report": relearned[1]["report"]}
    assert relearned[0]["retrievers"] != learned[0]["retrievers"]
    assert value.shape == again.shape == (40,) and set(value) <= {0.0, 1.0}
    assert correct.max(axis=1).mean() >= value.mean()


def test_the_report(study):
    arguments, reader = study
    found = json.loads(json.dumps(eor_study.analyse(arguments, reader), allow_nan=False))
    conditions = found["measures"]["em"]["conditions"]
    assert {*NAMES, "EoR unweighted", "EoR fitted", "upper bound", "best single, oracle"} < set(conditions)
    assert {f"control, {k}, {s}" for k in ("orders", "samples") for s in ("unweighted", "fitted")} < set(conditions)
    rows = eor_study.load_rows(arguments.output)
    correct = correctness(rows, "em")
    for m, name in enumerate(NAMES):
        assert conditions[name]["accuracy"]["estimate"] == pytest.approx(correct[:, m].mean())
    assert conditions["upper bound"]["accuracy"]["estimate"] == pytest.approx(correct.max(axis=1).mean())
    assert conditions["upper bound"]["mrlr"] == 0
    best = conditions["best single, chosen on the other half"]["accuracy"]["estimate"]
    assert best <= conditions["best single, oracle"]["accuracy"]["estimate"]
    missed = correct[:, 0] == 0
    loses = np.mean([correct[missed, m].mean() for m in (1, 2)])
    assert conditions[NAMES[0]]["mrlr"] == pytest.approx(loses)
    page = eor_study.markdown(found)
    assert "| EoR fitted |" in page and "## Errors" in page and "| 3 |" in page
