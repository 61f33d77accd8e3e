"""moi:paper and self-consistency in a study: the answers and measures of the direct calls."""

import io
from collections import Counter
from html import unescape
from pathlib import Path

import pytest
from rich.console import Console

from fastreader import load_examples
from fastreader.cli.tables.study import study_table
from fastreader.data.fingerprints import digest
from fastreader.errors import InputError
from fastreader.moi.baselines import moi_paper, self_consistency
from fastreader.report import Report
from fastreader.report.study_data import StudyRun
from fastreader.report.tables import summary_rows, uncalibrated
from fastreader.scoring.reading import reading_prompts
from fastreader.statistics.measures.answers import f1
from fastreader.study import RunFolder, Study, run_study
from fastreader.study.config import MethodConfig
from fastreader.study.measures.registry import PLAIN
from studies import rows_of, run, study_of

ROOT = Path(__file__).parents[2]


def test_moi_paper(tmp_path, tiny_reader):
    study = study_of(tmp_path, ["moi:paper", "order:moi-paper"], count=2, max_new_tokens=3)
    assert run(study, tmp_path / "run", tiny_reader).failed == 0
    rows = rows_of(tmp_path / "run")
    for example in load_examples(study.data):
        order = moi_paper(tiny_reader, example.question, example.passages, seed=0).order
        for method in study.methods:
            row = next(r for r in rows.values() if (r["question_id"], r["method"]) == (example.id, method.label))
            assert row["trace"]["order"] == order
            prompts = reading_prompts(tiny_reader, example.question, example.passages, [order])
            ((reply,),) = tiny_reader.generate(prompts, max_new_tokens=3, stop=["\n"])
            assert row["answer"] == reply.text.strip()
    pruned = study_of(tmp_path, [{"method": "moi:paper", "prune": 2, "order": "matched"}], count=1, max_new_tokens=3)
    assert run(pruned, tmp_path / "pruned", tiny_reader).failed == 0
    (row,) = rows_of(tmp_path / "pruned").values()
    example = load_examples(pruned.data)[0]
    found = moi_paper(tiny_reader, example.question, example.passages, seed=0, prune=2, order="matched")
    assert row["trace"]["order"] == found.order
    # Half of a question's own passages, however many the study allows.
    halves = study_of(tmp_path, ["moi:paper-pruned"], count=1, max_new_tokens=3)
    assert halves.passages > 3 and run(halves, tmp_path / "halves", tiny_reader).failed == 0
    (row,) = rows_of(tmp_path / "halves").values()
    found = moi_paper(tiny_reader, example.question, example.passages, seed=0, permutations="cyclic", prune=1)
    assert row["trace"]["order"] == found.order
    for options, message in (({"sign": "rising"}, "sign: expected one of"), ({"stopping": {}}, "got 'stopping'")):
        with pytest.raises(InputError, match=f"'moi:paper': .*{message}"):
            run(study_of(tmp_path, [{"method": "moi:paper", **options}]), tmp_path / "other", tiny_reader)


def test_rows_of_another_sign_rule_are_not_resumed():
    """Earlier versions kept the sign that the solver ended with, by the same options."""
    one, other = (MethodConfig(method=name).digest() for name in ("moi:paper", "moi:descending"))
    assert one != digest({"method": "moi:paper", "options": {}})
    assert other == digest({"method": "moi:descending", "options": {}})


def test_a_report_says_that_moi_without_a_calibration_is_base(tmp_path, tiny_reader):
    study = study_of(tmp_path, ["base", "moi", "moi:descending"], count=2, max_new_tokens=3)
    assert run(study, tmp_path / "run", tiny_reader).failed == 0
    rows = rows_of(tmp_path / "run").values()
    assert {r["method"]: r["trace"]["order"] for r in rows}["moi"] == [0, 1, 2]
    (said,) = uncalibrated(StudyRun(tmp_path / "run"))  # descending is ordered by query likelihood
    assert said.startswith("moi had no calibration for 2 of 2 questions and read them in the retriever's order")
    assert said in unescape(Report.of(tmp_path / "run").html())
    shown = io.StringIO()
    Console(file=shown, width=200).print(study_table(StudyRun(tmp_path / "run")))
    assert " ".join(shown.getvalue().split()).startswith(said)


def test_self_consistency_and_its_mean(tmp_path, tiny_reader):
    both = ["self-consistency", "self-consistency:mean"]
    study = study_of(tmp_path, both, count=2, max_new_tokens=4, seeds=[5])
    assert run(study, tmp_path / "run", tiny_reader).failed == 0
    rows = {(r["question_id"], r["method"]): r for r in rows_of(tmp_path / "run").values()}
    for example in load_examples(study.data):
        vote = self_consistency(tiny_reader, example.question, example.passages, seed=5, max_new_tokens=4)
        most, mean = (rows[example.id, name] for name in both)
        assert len(vote.answers) == 6  # 3 passages have no more orders
        assert most["answer"] == mean["answer"] == vote.answer and most["trace"]["answers"] == vote.answers
        assert mean["f1"] == pytest.approx(sum(f1(a, example.answers) for a in vote.answers) / 6)
        assert most["f1"] == f1(vote.answer, example.answers)
        assert most["tokens"]["total_tokens"] == mean["tokens"]["total_tokens"] > 0


def test_the_mean_over_orders_is_taken_of_every_measure(tmp_path, tiny_reader, monkeypatch):
    """The paper's "Random". The most frequent answer of the same orders has its own value."""
    monkeypatch.setitem(PLAIN, "words", lambda case: float(len(case.answer)))
    both = ["self-consistency", "self-consistency:mean"]
    folder = tmp_path / "run"
    run(study_of(tmp_path, both, count=2, max_new_tokens=9, measures=["words"]), folder, tiny_reader)
    found = RunFolder(folder).measures()
    for row in rows_of(folder).values():
        lengths = [len(answer) for answer in row["trace"]["answers"]]
        mean = sum(lengths) / len(lengths)
        wanted = mean if row["method"] == both[1] else len(row["answer"])
        assert found[row["id"]]["words"] == pytest.approx(wanted)
    assert len({len(a) for row in rows_of(folder).values() for a in row["trace"]["answers"]}) > 1


def test_self_consistency_takes_a_number_of_orders(tmp_path, tiny_reader):
    study = study_of(tmp_path, [{"method": "self-consistency", "count": 2}], count=1, max_new_tokens=2)
    run(study, tmp_path / "run", tiny_reader)
    (row,) = rows_of(tmp_path / "run").values()
    assert len(row["trace"]["orders"]) == 2
    with pytest.raises(InputError, match="'self-consistency': count: expected"):
        run(study_of(tmp_path, [{"method": "self-consistency", "count": 0}]), tmp_path / "other", tiny_reader)


def test_the_recipe_compares_every_placement_with_the_mean_of_its_shuffles(tmp_path, tiny_reader):
    study = Study.load(ROOT / "examples" / "placed.toml", limit=2, passages=3, max_new_tokens=2)
    run_study(study, tmp_path / "run", load=lambda name: tiny_reader, progress=False)
    found = StudyRun(tmp_path / "run")
    counts = Counter(row["method"] for row in found.rows if row["answer"] is not None)
    assert counts["shuffled"] == 2 * 3 and set(counts) >= {m.label for m in study.methods} - {"arrange"}
    contrasts = {row["method"]: row for row in summary_rows(found) if row["answered"]}
    others = [row for name, row in contrasts.items() if name != "shuffled"]
    assert all((row["baseline"], row["pairs"]) == ("shuffled", 2) for row in others) and len(others) >= 4
    assert [name for name, row in contrasts.items() if row["primary"]] == ["best last"]
    orders = {(row["method"], row["seed"]): row["trace"].get("order") for row in found.rows}
    passages = len(next(iter(found.questions.values())).passages)
    assert orders["best last", 0] == list(range(passages))[::-1]
    assert len({tuple(orders["shuffled", seed]) for seed in study.seeds}) > 1
