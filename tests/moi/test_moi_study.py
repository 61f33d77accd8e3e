"""studies/moi_study.py: it runs every method, resumes, and its report agrees with the rows."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from dataclasses import replace

import moi_analyses
import moi_study
import numpy as np
import pytest
from helpers.support import byte_tokenizer, tiny_llama
from lib import moi_report
from lib.moi_orders import BASELINES, MOI, POLARITY, REVERSED, all_orders
from lib.moi_report import sign_flip
from lib.moi_rows import mean_rates, outcome_of, scores_of
from scipy.stats import ttest_1samp

import fastreader as fr
from fastreader.errors import OutOfBudgetError
from fastreader.moi import PositionBias, calibrate, probe, rerank
from fastreader.moi.baselines import METHODS, self_consistency
from fastreader.reader.session import Session
from fastreader.statistics import holm, paired_bootstrap

pytestmark = pytest.mark.usefixtures("fewer_resamples")


def run(*arguments, sign="query_likelihood"):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["moi_study.py", *map(str, arguments)])
        # A random model does not determine the sign, and orders that need it would fail.
        patch.setattr(moi_study, "calibrate", lambda *a, **k: replace(calibrate(*a, **k), sign=sign))
        moi_study.main()


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Five questions of three passages, one of them without its gold passage, read by a tiny random model."""
    folder = tmp_path_factory.mktemp("study")
    tiny_llama().save_pretrained(folder / "model")
    byte_tokenizer().save_pretrained(folder / "model")
    words = ["Nile", "Seine", "Po", "Rhine", "Volga"]
    with (folder / "data.jsonl").open("w") as data:
        for q, word in enumerate(words):
            ctxs = [
                {"id": 10 * q + p, "title": "", "text": f"{words[(q + p) % 5]} {p}", "score": 3 - p, "isgold": p == q}
                for p in range(3)
            ]
            row = {"question": f"where {q}?", "answers": [word, word.lower()], "ctxs": ctxs}
            data.write(json.dumps(row) + "\n")
    arguments = [folder / "data.jsonl", "--passages", 3, "--model", folder / "model", "--folds", 2]
    arguments += ["--precision", "exact"]  # a session's orders and texts are a reader's to the last one
    arguments += ["--shuffles", 2, "--max-new-tokens", 4, "--output", folder / "run", "--questions", 5]
    run(*arguments)
    return folder, arguments


def rows_of(folder):
    return [json.loads(line) for line in (folder / "run" / "readings.jsonl").open()]


def test_every_method_ordered_and_read_every_question(study):
    rows = rows_of(study[0])
    assert [r["id"] for r in rows] == list("01234")
    assert [r["gold_rank"] for r in rows] == [1, 2, 3, None, None]
    for row in rows:
        assert set(row["methods"]) == {*BASELINES, *MOI, *(p + REVERSED for p in POLARITY)}
        for name, method in row["methods"].items():
            if name == "oracle" and row["gold"] is None:
                assert "no passage is marked" in method["error"]
                continue
            assert sorted(method["order"]) == [0, 1, 2], (name, method)
            assert np.isfinite(outcome_of(row, name)["nats"])
            assert method["computed"] <= method["given"]
        orders = {name: method["order"] for name, method in row["methods"].items() if "order" in method}
        assert orders["retriever"] == [0, 1, 2]
        assert orders["reversed"] == [2, 1, 0]
        assert orders["moi-calibrated" + REVERSED] == orders["moi-calibrated"][::-1]
        assert len(row["outcomes"]) == row["read"]["orders"] == len({*map(tuple, orders.values())})


def test_calibrations_have_not_seen_the_question(study):
    rows = rows_of(study[0])
    for path in (study[0] / "run").glob("bias-fold*.json"):
        measured_on = json.loads(path.read_text())["measured_on"]["questions"]
        fold = int(path.stem.removeprefix("bias-fold"))
        assert measured_on
        assert all(rows[i]["fold"] != fold for i in measured_on)


def test_calibrations_are_checked_on_gold_passages_of_the_same_questions(study):
    """Three of the five questions have their gold passage, moved through the places once each."""
    folder = study[0] / "run"
    probes = {row["id"]: row["effects"] for row in map(json.loads, (folder / "probes.jsonl").open())}
    for path in folder.glob("bias-fold*.json"):
        bias = json.loads(path.read_text())
        pool = [str(i) for i in bias["measured_on"]["questions"]]
        assert bias["measured_on"]["probed"] == len([i for i in pool if i in probes])
        assert (bias["contrast_z"] is not None) == (bias["measured_on"]["probed"] >= 2)
    examples = fr.load_examples(study[0] / "data.jsonl")
    reader = fr.Reader.load(study[0] / "model", precision="exact")
    found = probe(reader, [replace(examples[1], candidates=[])], [1])
    assert probes["1"] == pytest.approx(found.effects[0].tolist(), abs=1e-4)


def test_what_methods_share_is_run_once(study, monkeypatch):
    """QG uses the available scores. A matched baseline places the scores of its plain one."""
    folder = study[0]
    example = fr.load_examples(folder / "data.jsonl")[0]
    example = replace(example, candidates=[])
    reader = fr.Reader.load(folder / "model", precision="exact")
    scores = {r["id"]: r for r in map(json.loads, (folder / "run" / "observations.jsonl").open())}["0"]
    bias = PositionBias.load(folder / "run" / "bias-fold0.json")
    expected = METHODS["qg-matched"](reader, example.question, example.passages, bias=bias)
    calls = []
    session = Session(reader.local_model)
    for name in ("score", "loglikelihood", "generate"):
        real = getattr(session, name)
        monkeypatch.setattr(session, name, lambda *a, real=real, name=name, **k: calls.append(name) or real(*a, **k))

    def orders(*names):
        calls.clear()
        return all_orders(
            session, fr.Template(), example, scores_of(scores), bias, list(names), 0, {"max_batch_tokens": 500}
        )

    found = orders("qg", "qg-matched")
    assert not calls
    assert found["qg-matched"]["order"] == expected.order
    assert (found["qg"]["computed"], found["qg"]["given"]) == (
        expected.stats.computed_tokens,
        expected.stats.total_tokens,
    )
    orders("pairwise", "pairwise-matched", "rankgpt", "rankgpt-matched", "bayes-saliency-matched", "bayes-saliency")
    assert sorted(calls) == ["generate", "loglikelihood", "score"]


def test_each_method_has_the_tokens_that_it_takes_by_itself(study):
    """The study's session changes neither the tokens of a method nor its order."""
    folder = study[0]
    examples = fr.load_examples(folder / "data.jsonl")
    reader = fr.Reader.load(folder / "model", precision="exact")
    for row in rows_of(folder)[:2]:
        i = int(row["id"])
        example = replace(examples[i], candidates=[])
        bias = PositionBias.load(folder / "run" / f"bias-fold{row['fold']}.json")
        settings = {"bias": bias, "seed": i, "count": 2}
        for name in ("bayes-saliency", "bayes-saliency-plus", "pairwise", "rankgpt", "permutation-self-consistency"):
            found = METHODS[name](reader, example.question, example.passages, **settings)
            recorded = row["methods"][name]
            assert recorded["order"] == found.order
            assert (recorded["computed"], recorded["given"]) == (found.stats.computed_tokens, found.stats.total_tokens)
        ranked = rerank(reader, example, bias=bias, seed=i)
        recorded = row["methods"]["moi-calibrated"]
        assert recorded["order"] == [p.index for p in ranked.passages]
        assert (recorded["computed"], recorded["given"]) == (ranked.cost.computed_tokens, ranked.cost.total_tokens)
        assert row["session"]["reused"] > 0
        assert row["read"]["reused"] > row["read"]["computed"]
        assert row["session"]["notes"] == []


def test_observations_are_those_of_the_reader_alone(study):
    """Scores and votes in a session that keeps what it scores are those without it. No text of the data is kept."""
    folder = study[0]
    examples = fr.load_examples(folder / "data.jsonl")
    reader = fr.Reader.load(folder / "model", precision="exact")
    for row in map(json.loads, (folder / "run" / "observations.jsonl").open()):
        i = int(row["id"])
        right, passages = examples[i].answers, examples[i].passages
        want = fr.score_permutations(
            reader, examples[i].question, passages, right, "random", seed=i, score_passages=True, query_likelihood=True
        )
        got = scores_of(row)
        assert got.permutations.tolist() == want.permutations.tolist()
        for name in ("question_logprobs", "passages_logprobs", "query_logprobs"):
            assert getattr(got, name) == pytest.approx(getattr(want, name), abs=1e-3)
        vote = self_consistency(reader, examples[i].question, passages, count=6, seed=i, max_new_tokens=4)
        assert vote.orders == got.permutations.tolist()
        mean = {"nats": np.logaddexp.reduce(want.logprobs, axis=1).mean(), **mean_rates(vote.answers, right)}
        assert row["random_mean"] == pytest.approx(mean, abs=1e-3)
        own = mean_rates([vote.answer], right)
        assert row["vote"] == {**own, "share": vote.share, "computed": vote.stats.computed_tokens}
    words = [w for e in examples for w in (e.question, *(p.text for p in e.passages), *map(json.dumps, e.answers))]
    for file in ("observations.jsonl", "probes.jsonl", "readings.jsonl"):
        text = (folder / "run" / file).read_text()
        assert not [w for w in words if w in text]


def test_a_question_that_memory_does_not_hold_is_still_read(study, tmp_path, monkeypatch):
    def refuse(self, trees):
        raise OutOfBudgetError("session: too much")

    monkeypatch.setattr("fastreader.reader.session.Session._check_room", refuse)
    run(
        *study[1][: study[1].index("--output")],
        "--output",
        tmp_path / "run",
        "--questions",
        5,
        "--methods",
        "retriever",
        "qg",
        "self-consistency",
    )
    for row in map(json.loads, (tmp_path / "run" / "readings.jsonl").open()):
        assert row["session"]["notes"] == ["session: too much"] * 3
        assert row["read"]["reused"] == 0
    for row in map(json.loads, (tmp_path / "run" / "observations.jsonl").open()):
        assert row["notes"] == ["session: too much"]
        assert row["vote"]["computed"] > 0


def test_a_missing_primary_contrast_is_reported(study, tmp_path, capsys):
    folder, arguments = study
    again = [*arguments[: arguments.index("--output")], "--output", tmp_path / "run", "--questions", 5]
    again += ["--methods", "retriever", "qg-matched", "moi-calibrated"]
    run(*again, sign="undetermined")
    assert "folds [0, 1]: the bias's sign is undetermined" in capsys.readouterr().err
    text = (tmp_path / "run" / "report.md").read_text()
    assert "against qg-matched in nats: **not available**" in text
    assert "qg-matched: 5 questions; bias: its sign is undetermined" in text
    run(*arguments, "--report")
    assert "against qg-matched in nats: 5 of 5 questions" in (folder / "run" / "report.md").read_text()


def test_sign_flips_by_hand():
    assert sign_flip([1.0, 1.0, 1.0], ["a", "b", "c"]) == 2 / 8
    assert sign_flip([1.0, 1.0, 1.0], ["a", "a", "c"]) == 2 / 4  # sums 2 and 1
    assert sign_flip([0.0, 0.0], ["a", "b"]) == 1.0
    rng = np.random.default_rng(0)
    x = rng.normal(0.2, 1, 300)
    assert sign_flip(x, [str(i) for i in range(300)]) == pytest.approx(ttest_1samp(x, 0).pvalue, rel=0.3)
    # Doubling every question within its cluster is no new evidence.
    assert sign_flip([*x, *x], [str(i) for i in range(300)] * 2) == sign_flip(x, [str(i) for i in range(300)])


def test_it_resumes_where_it_was(study):
    folder, arguments = study
    readings, observations = folder / "run" / "readings.jsonl", folder / "run" / "observations.jsonl"
    whole, seen = readings.read_text().splitlines(keepends=True), observations.read_bytes()
    readings.write_text("".join(whole[:3]) + whole[3][:100])  # killed while it wrote the fourth
    run(*arguments)
    again = readings.read_text().splitlines(keepends=True)
    assert again[:3] == whole[:3]
    assert observations.read_bytes() == seen
    for line, before in zip(again, whole, strict=True):
        now, then = json.loads(line), json.loads(before)
        assert {n: m.get("order") for n, m in now["methods"].items()} == {
            n: m.get("order") for n, m in then["methods"].items()
        }


def test_compressed_logs_are_reported_and_unpacked_to_resume(study, tmp_path, capsys):
    """A report reads .jsonl.gz as it is. A resumed run unpacks it and appends to the plain file."""
    folder, arguments = study
    run(*arguments, "--report")
    copy = tmp_path / "run"
    shutil.copytree(folder / "run", copy)
    readings = (copy / "readings.jsonl").read_bytes()
    kept = b"".join(readings.splitlines(keepends=True)[:-1])
    for name, content in (("observations", (copy / "observations.jsonl").read_bytes()), ("readings", kept)):
        (copy / f"{name}.jsonl.gz").write_bytes(gzip.compress(content))
        (copy / f"{name}.jsonl").unlink()
    again = [*arguments[: arguments.index("--output")], "--output", copy, "--questions", 5]
    run(*again, "--report")
    assert json.loads((copy / "report.json").read_text())["questions"] == 4
    assert not (copy / "readings.jsonl").exists()
    capsys.readouterr()
    run(*again)
    assert "readings.jsonl: unpacked from readings.jsonl.gz" in capsys.readouterr().err
    assert (copy / "readings.jsonl").read_bytes().startswith(kept)
    assert len(rows_of(copy.parent)) == 5  # the plain file, which a report prefers from now on
    assert (copy / "report.md").read_text() == (folder / "run" / "report.md").read_text()
    run(*again)
    assert "unpacked" not in capsys.readouterr().err


def test_the_report_agrees_with_the_rows(study):
    folder, arguments = study
    run(*arguments, "--report")
    report = json.loads((folder / "run" / "report.json").read_text())
    rows = rows_of(folder)
    methods = {m["name"]: m for m in report["methods"]}
    mean = np.mean([outcome_of(r, "qg")["nats"] for r in rows])
    assert methods["qg"]["nats"]["estimate"] == pytest.approx(mean)
    assert methods["oracle"]["n"] == 3
    assert methods["retriever"]["gold_mrr"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert methods["self-consistency"]["tokens"] > 0
    assert report["strata"]["gold at rank 1"]["questions"] == 1
    assert report["strata"]["gold not among the N"]["questions"] == 2
    first = report["contrasts"][0]
    assert (first["against"], first["measure"], first["primary"]) == (moi_study.PRIMARY[1], moi_study.PRIMARY[2], True)
    assert "p_holm" not in first
    assert report["errors"]["oracle"]["questions"] == 2
    share = np.sum([r["methods"]["qg"]["computed"] for r in rows]) / np.sum([r["full"] for r in rows])
    assert methods["qg"]["share"] == pytest.approx(share)
    reverse = {(c["name"], c["measure"]): c["difference"]["estimate"] for c in report["polarity"]}
    assert {name for name, _ in reverse} == set(POLARITY)
    f1 = [[outcome_of(r, n)["nats"] for r in rows] for n in ("rankgpt", "rankgpt" + REVERSED)]
    assert reverse["rankgpt", "nats"] == pytest.approx(np.mean(f1[0]) - np.mean(f1[1]))
    stratum = {m["name"]: m for m in report["strata"]["gold not among the N"]["methods"]}
    lacking = [r for r in rows if r["gold_rank"] is None or r["gold_rank"] > 3]
    assert stratum["qg"]["n"] == len(lacking) == 2
    for measure in ("nats", "em", "contained", "f1"):
        mean = np.mean([outcome_of(r, "qg")[measure] for r in lacking])
        assert stratum["qg"][measure]["estimate"] == pytest.approx(mean)
    assert stratum["qg"]["tokens"] == np.mean([r["methods"]["qg"]["computed"] for r in lacking])
    assert all("mde" in m for m in report["strata"]["gold not among the N"]["methods"] if "lead" in m)
    text = (folder / "run" / "report.md").read_text()
    assert "**qg-matched**" in text
    assert "nan" not in text.lower()


def test_folds_keep_clusters_whole():
    clusters = [f"c{i // 2}" for i in range(20)]
    folds = moi_study.folds_of(clusters, 5, seed=0)
    assert folds[::2] == folds[1::2]
    assert sorted(folds) == sorted([0, 1, 2, 3, 4] * 4)


def test_contrasts_by_hand():
    values = {
        "moi-calibrated": {"nats": {"a": 1.0, "b": 2.0, "c": 4.0}, "em": {"a": 1.0, "b": 1.0, "c": 0.0}},
        "qg-matched": {"nats": {"a": 0.0, "b": 2.5, "c": 1.0}},
        "retriever": {"nats": {"a": 0.5, "b": 0.0, "c": 0.0}, "em": {"a": 0.0, "b": 0.0, "c": 0.0}},
    }
    clusters = {"a": "p", "b": "p", "c": "q"}
    found = moi_report.contrasts(values, clusters, moi_study.PRIMARY)
    assert [(c["against"], c["measure"]) for c in found] == [
        ("qg-matched", "nats"), ("retriever", "nats"), ("retriever", "em")
    ]  # fmt: skip
    a, b = [1.0, 2.0, 4.0], [0.0, 2.5, 1.0]
    assert found[0]["difference"] == paired_bootstrap(a, b, clusters=["p", "p", "q"]).to_dict()
    assert found[0]["p"] == sign_flip([x - y for x, y in zip(a, b, strict=True)], ["p", "p", "q"])
    assert [c["p_holm"] for c in found[1:]] == holm([c["p"] for c in found[1:]])


def test_the_report_counts_how_often_the_claimed_best_is_gold():
    def row(p_best, gold, rank=1):
        method = {"order": [0, 1], "details": {"p_best": p_best}}
        return {
            "methods": {"moi": method, "retriever": {"order": [0, 1]}},
            "gold": gold,
            "gold_rank": rank,
            "settings": {"passages": 2},
        }

    rows = [row([0.95, 0.05], 0), row([0.97, 0.03], 0), row([0.2, 0.8], 0), row([0.99, 0.01], 0, None)]
    rows.append({**rows[0], "methods": {"moi": {"error": "too long"}}})
    everything, lower, upper = moi_report.claims(rows, "moi")
    assert [c["n"] for c in (everything, lower, upper)] == [3, 1, 2]
    assert (lower["from"], lower["to"], lower["claimed"], lower["gold"]) == (0.7, 0.9, 0.8, 0.0)
    assert (upper["to"], upper["claimed"], upper["gold"]) == (1.0, pytest.approx(0.96), 1.0)
    assert everything["gold"] == pytest.approx(2 / 3)
    assert moi_report.claims(rows, "retriever") == []


def test_the_analyses_run_resume_and_report(study, tmp_path, monkeypatch):
    folder = study[0]
    arguments = [folder / "data.jsonl", "--passages", 3, "--model", folder / "model", "--orders", 6]
    arguments += ["--output", tmp_path, "--max-new-tokens", 3, "--precision", "exact"]

    def analyse(*more):
        monkeypatch.setattr(sys, "argv", ["moi_analyses.py", *map(str, [*arguments, *more])])
        moi_analyses.main()

    analyse("--questions", 2)
    first = (tmp_path / "analyses.jsonl").read_bytes()
    analyse("--questions", 5)
    assert (tmp_path / "analyses.jsonl").read_bytes().startswith(first)
    rows = [json.loads(line) for line in (tmp_path / "analyses.jsonl").open()]
    assert ["places" in r for r in rows] == [True, True, True, False, False]
    report = json.loads((tmp_path / "analyses.json").read_text())
    nats = [r["places"][2]["nats"] for r in rows[:3]]
    assert report["places"][2]["nats"]["estimate"] == pytest.approx(np.mean(nats))
    assert report["places"][2]["n"] == 3
    # The first question has its gold passage first already: read there, it is the retriever's order.
    study_row = outcome_of(rows_of(folder)[0], "retriever")["nats"]
    assert rows[0]["places"][0]["nats"] == pytest.approx(study_row, abs=1e-3)
    assert sum(report["bias"]["joint"]) == pytest.approx(1)
    text = (tmp_path / "analyses.md").read_text()
    assert "same first passage: 0." in text
    assert "nan" not in text
