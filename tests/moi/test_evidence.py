"""studies/evidence.py: differences against the retriever's order, held-out questions, the hidden reader, resuming."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import evidence
import numpy as np
import pytest
from lib import evidence_report
from lib.moi_rows import outcome_of
from lib.shared import rows_of

import fastreader as fr
from fastreader.moi.calibration.store import SHIPPED, find

pytestmark = pytest.mark.usefixtures("loaded_once")

STUDIES = Path(__file__).parents[2] / "studies"

EXAMPLES = STUDIES.parent / "examples" / "questions.jsonl"


def row(i, nats, rank=1, cluster=None):
    """A row in which the retriever's order has 0 nats and BM25's arrangement `nats`."""
    return {
        "id": str(i),
        "gold_rank": rank,
        "cluster": cluster or f"passage {i}",
        "settings": {"passages": 3, "max_new_tokens": 0},
        "methods": {"retriever": {"order": [0, 1, 2]}, "bm25-matched": {"order": [1, 2, 0], "computed": 7}},
        "outcomes": {"0 1 2": {"nats": 0.0}, "1 2 0": {"nats": nats}},
    }


def test_differences_are_paired_and_by_the_rank_of_the_gold_passage():
    found = evidence_report.summary([row(0, 1.0), row(1, 3.0), row(2, -1.0, rank=3), row(3, 5.0, rank=None)])
    arranged = found["methods"]["arrange-bm25"]
    assert (arranged["n"], arranged["tokens"], arranged["against"]["nats"]["estimate"]) == (4, 7, 2.0)
    means = {name: (part["n"], part["nats"]["estimate"]) for name, part in arranged["strata"].items()}
    assert means == {"gold first": (2, 2.0), "gold at 2 to N": (1, -1.0), "gold not among the N": (1, 5.0)}
    assert "contained" not in arranged and found["methods"]["retriever"]["against"] == {}
    same = evidence_report.summary([row(i, float(i % 2), cluster="one") for i in range(6)])["methods"]["arrange-bm25"]
    assert same["against"]["nats"]["low"] == same["against"]["nats"]["high"] == 0.5  # one gold passage: one cluster


def test_no_evaluated_question_was_used_for_a_shipped_calibration():
    for path in SHIPPED.glob("*.json"):
        used = json.loads(path.read_text())["measured_on"]["rows"]
        assert min(used) >= evidence_report.HELD_OUT == evidence.HELD_OUT, path.name
    assert [r["id"] for r in evidence_report._before([row(700, 0.0), row(699, 0.0), row(2, 0.0)])] == ["2", "699"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, packaged_reader):
    """Two questions of three passages. The second call resumes the first and adds the paper's MoI and averages."""
    folder = tmp_path_factory.mktemp("evidence")
    for paper in (0, 1):
        with pytest.MonkeyPatch.context() as patch:
            flags = ["--passages", 3, "--model", "smollm2-135m", "--questions", 2, "--scored", 2, "--paper", paper]
            flags += ["--averaged", paper]
            patch.setattr(sys, "argv", ["evidence.py", str(EXAMPLES), *map(str, flags), "--output", str(folder)])
            evidence.main()
    return folder


@pytest.mark.long
def test_each_order_is_read_and_a_resumed_run_repeats_nothing(folder):
    rows = {path.stem.rpartition("-")[2]: list(map(json.loads, path.open())) for path in folder.glob("*.jsonl")}
    assert [len(rows[stage]) for stage in ("free", "scored", "paper")] == [2, 2, 1]
    for found in rows["free"] + rows["scored"]:
        for method in found["methods"].values():
            assert " ".join(map(str, method["order"])) in found["outcomes"]
    example = fr.load_examples(EXAMPLES, limit=1)[0]
    placed = fr.arrange(list(range(3)), "smollm2-135m", [p.score for p in example.passages[:3]])
    assert rows["free"][0]["methods"]["bm25-matched"]["order"] == placed
    nats = rows["free"][0]["outcomes"][" ".join(map(str, placed))]["nats"]
    reader = fr.Reader.load("smollm2-135m")  # as the script: "fast"
    scores = fr.score_permutations(
        reader, example.question, example.passages[:3], example.answers, permutations=[placed]
    )
    assert nats == pytest.approx(np.logaddexp.reduce(scores.logprobs[0]), abs=1e-3)


@pytest.mark.long
def test_the_hidden_reader_has_no_calibration_and_keeps_the_retrievers_order_until_its_pool_settles(folder):
    for found in map(json.loads, (folder / "smollm2-135m-n3-scored.jsonl").open()):
        assert found["bias_source"] == "none: query likelihood" and len(found["pooled"]["permutations"]) == 3
        assert found["methods"]["uncalibrated"]["order"] == [0, 1, 2]
    about = {"name": "smollm2-135m"}
    assert find(about, fr.Template().digest(), 3) is not None
    assert find(evidence.hidden(about), fr.Template().digest(), 3) is None


@pytest.mark.long
def test_the_report_names_the_primary_contrast_and_what_was_not_run(folder):
    text = (folder / "report.md").read_text()
    assert "arrange-bm25 less retriever" in text and "## smollm2-135m, N = 3, shipped calibration: 2 questions" in text
    assert "Not run" not in text.rpartition("## ")[2]
    [averaged] = rows_of(folder / "smollm2-135m-n3-averaged.jsonl")
    own, read = averaged["methods"]["answers-over-orderings"], averaged["outcomes"]
    assert own["orders"] == [[0, 1, 2], [1, 2, 0], [2, 0, 1]] and own["computed"] > 0
    shares = [math.exp(read[order]["nats"]) for order in ("0 1 2", "1 2 0", "2 0 1")]
    assert outcome_of(averaged, "answers-over-orderings")["nats"] == pytest.approx(math.log(sum(shares) / 3))


def test_a_run_names_what_it_lacks():
    report = {"a run": evidence_report.summary([row(0, 1.0), row(1, 2.0)])}
    assert evidence_report.markdown(report).rstrip().endswith("uncalibrated-arrange, answers-over-orderings.")
