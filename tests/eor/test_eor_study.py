"""studies/eor_study.py on made-up answers: the control, the analysis and the report."""

import json
from argparse import Namespace
from dataclasses import replace

import eor_study
import numpy as np
import pytest
from eor_cases import WIKI, CountingReader, passage_file, simulate
from lib import eor_analysis, eor_report

from fastreader.data import Passage
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.eor import SHORT, Answers, Document, correctness, measures
from fastreader.errors import InputError

BEST = eor_analysis.REFERENCE
NAMES = ["A@2", "B@2", "ReFree"]


@pytest.fixture
def make(tmp_path):
    """Answers of three retrievers, and the control of a reader that answers with what it reads first."""

    def run(texts, right):
        output = tmp_path / "out.jsonl"
        arguments = Namespace(
            data=passage_file(tmp_path / "data.jsonl", WIKI), pool=passage_file(tmp_path / "pool.jsonl", WIKI),
            output=output, retrievers=NAMES, encoder="none", texts="short", max_new_tokens=4, temperature=0.7, group=3,
            seed=0,
        )  # fmt: skip
        reader = CountingReader(write=lambda prompt, i: prompt.split("\n\n")[1] + ("" if i == 0 else f" {i}"))
        made_with = eor_study.settings(arguments, reader)
        with ResultLog(output, settings=made_with) as log:
            for q, row in enumerate(texts):
                documents = [Document(n, [Passage(t), Passage("other")]) for n, t in zip(NAMES[:2], row, strict=False)]
                answers = Answers(f"q{q}", NAMES, [*row], documents=[*documents, Document("ReFree")], right=[right])
                log.append(str(q), {k: v for k, v in answers.to_dict().items() if k != "id"})
        eor_study.control(arguments, reader, made_with)
        return arguments, reader

    return run


def analysed(arguments):
    return eor_analysis.analyse(arguments.output, ["exact", "f1"], eor_study.MEASURES, starts=2)


@pytest.fixture
def study(make):
    return make(simulate(0, 40, [0.7, 0.6, 0.4])[0], "right")


def test_the_control_reads_the_chosen_retrievers_once_for_each_retriever(study):
    arguments, reader = study
    rows = eor_analysis.load_rows(arguments.output)
    first = eor_analysis.half(40, 0)
    assert first.sum() == 20
    chosen = set()
    for measure in ("em", "contained"):
        correct = correctness(rows, measure)
        best = [NAMES[correct[part].mean(axis=0).argmax()] for part in (first, ~first)]
        assert eor_analysis.best_of_halves(rows, measure, first) == best
        chosen |= set(best)
    seen = set()
    for row in iter_results(eor_analysis.control_file(arguments.output)):
        name, _, q = row["id"].partition("/")
        seen.add(name)
        own = rows[int(q)].texts[NAMES.index(name)]
        assert len(row["orders"]) == len(row["samples"]) == 3
        assert row["orders"][0] == own and set(row["orders"]) <= {own, "other"}
        assert row["samples"] == [own, f"{own} 1", f"{own} 2"]
    assert seen == chosen
    asked = len(reader.prompts)
    eor_study.control(arguments, reader, eor_study.settings(arguments, reader))
    assert len(reader.prompts) == asked  # all of it is in the file


def test_the_prompts_are_the_texts(study):
    _, reader = study
    assert all(prompt.endswith("Answer:") and "Leo Tolstoy" in prompt for prompt in reader.prompts)
    assert SHORT.answer_lead == "Answer:"


def test_measures_that_choose_other_retrievers_each_have_their_control(make):
    """A is best by containment, B by exact match."""
    arguments, _ = make(
        [["the right one", "right", "x"] if q % 3 else ["it is right", "y", "x"] for q in range(40)], "right"
    )
    rows = eor_analysis.load_rows(arguments.output)
    names = {row["id"].partition("/")[0] for row in iter_results(eor_analysis.control_file(arguments.output))}
    assert names == {"A@2", "B@2"}
    found = analysed(arguments)
    assert set(found["measures"]["em"]["chosen"].values()) == {"B@2"}
    assert set(found["measures"]["contained"]["chosen"].values()) == {"A@2"}
    em = found["measures"]["em"]["conditions"]["control, samples, unweighted"]["accuracy"]["estimate"]
    assert em == pytest.approx(correctness(rows)[:, 1].mean())


def test_answers_of_the_control_that_are_missing_are_counted(study):
    arguments, _ = study
    path = eor_analysis.control_file(arguments.output)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-3]))
    with pytest.raises(InputError, match=rf"3 of {len(lines)} answers of the control"):
        analysed(arguments)
    path.unlink()
    with pytest.raises(InputError, match="control"):
        analysed(arguments)


def test_settings_depend_on_the_content_of_the_files(study):
    arguments, reader = study
    before = eor_study.settings(arguments, reader)
    assert before["texts"] == SHORT.to_dict() and json.loads(json.dumps(before)) == before
    for name in ("data", "pool"):
        path = getattr(arguments, name)
        path.write_text(path.read_text() + "\n")
        assert eor_study.settings(arguments, reader)[name] != before[name]
    with pytest.raises(InputError, match="settings"):
        eor_study.control(arguments, reader, eor_study.settings(arguments, reader))


def test_a_run_resumes_on_another_machine_but_not_with_another_model(study, monkeypatch):
    arguments, reader = study
    asked, rows = len(reader.prompts), list(iter_results(eor_analysis.control_file(arguments.output)))
    assert all(row["reader"] == reader.describe() for row in rows)
    eor_analysis.control_file(arguments.output).write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))
    about = reader.describe() | {"device": "cuda:0", "forward": "other parts"}
    monkeypatch.setattr(reader, "describe", lambda: about)
    eor_study.control(arguments, reader, eor_study.settings(arguments, reader))
    again = list(iter_results(eor_analysis.control_file(arguments.output)))
    assert len(reader.prompts) > asked and len(again) == len(rows)
    assert again[-1]["reader"] == about and again[-1]["settings"] == rows[-1]["settings"]
    for key in ("name", "precision", "dtype", "revision"):
        monkeypatch.setattr(reader, "describe", lambda key=key: about | {key: "another"})
        with pytest.raises(InputError, match="made with other settings: reader"):
            eor_study.control(arguments, reader, eor_study.settings(arguments, reader))


def test_vectors_of_another_pool_are_not_used(study, monkeypatch):
    arguments, _ = study
    encoded = []

    def encode(texts):
        encoded.append(len(texts))
        return np.ones((len(texts), 1), dtype=np.float32)

    monkeypatch.setattr("fastreader.models.loading.sentence_encoders.load_encoder", lambda name: encode)
    pool = [Passage("one"), Passage("two")]
    for digest, expected in (("a", [2]), ("a", [2]), ("b", [2, 2])):
        assert eor_study.encoded(arguments, pool, digest).vectors.shape == (2, 1)
        assert encoded == expected
    arguments.encoder = "another"
    eor_study.encoded(arguments, pool, "b")
    assert encoded == [2, 2, 2]


def test_nothing_is_reported_on_the_half_it_was_learned_from(study):
    arguments, _ = study
    rows = eor_analysis.load_rows(arguments.output)
    first = eor_analysis.half(40, 0)
    correct = correctness(rows, "em")
    fits = eor_analysis.Fits(["exact", "f1"], "em", first, 2, 0)
    value, learned = fits.fitted([rows, rows])
    # With the first half's answers changed, the second half's figures come from other weights; the first half's
    # weights, learned on the second, stay.
    changed = [replace(r, texts=["x", "y", "right"]) if f else r for r, f in zip(rows, first, strict=True)]
    again, relearned = fits.fitted([changed, changed])
    assert relearned[1] == {**learned[1], "report": relearned[1]["report"]}
    assert relearned[0]["retrievers"] != learned[0]["retrievers"]
    assert value.shape == again.shape == (40,) and set(value) <= {0.0, 1.0}
    assert correct.max(axis=1).mean() >= value.mean()


def test_the_report(study):
    arguments, _ = study
    found = json.loads(json.dumps(analysed(arguments), allow_nan=False))
    conditions = found["measures"]["em"]["conditions"]
    assert {*NAMES, "EoR unweighted", "EoR fitted", "upper bound", BEST, "best single, oracle"} < set(conditions)
    assert {f"control, {k}, {s}" for k in ("orders", "samples") for s in ("unweighted", "fitted")} < set(conditions)
    rows = eor_analysis.load_rows(arguments.output)
    correct = correctness(rows, "em")
    for m, name in enumerate(NAMES):
        assert conditions[name]["accuracy"]["estimate"] == pytest.approx(correct[:, m].mean())
        assert conditions[name]["mrlr"]["estimate"] == pytest.approx(measures.mrlr(correct)[m])
    assert conditions["upper bound"]["accuracy"]["estimate"] == pytest.approx(correct.max(axis=1).mean())
    assert conditions["upper bound"]["mrlr"]["estimate"] == 0
    assert conditions[BEST]["accuracy"]["estimate"] <= conditions["best single, oracle"]["accuracy"]["estimate"]
    assert found["primary"] == "em" and not found["measures"]["em"]["floor"]
    page = eor_report.markdown(found)
    assert "| EoR fitted |" in page and "## Errors" in page and "| 3 |" in page
    assert "All questions." in page and "The paper's filter: 40 questions" in page
    assert page.count("| E_r |") == 2


def test_the_best_single_retriever_loses_as_often_as_that_retriever(make):
    arguments, _ = make(simulate(3, 60, [0.9, 0.3, 0.3])[0], "right")
    found = analysed(arguments)["measures"]["em"]
    assert set(found["chosen"].values()) == {"A@2"}
    for name in (BEST, "best single, oracle"):
        assert found["conditions"][name]["mrlr"] == found["conditions"]["A@2"]["mrlr"]


def test_lose_ratio_by_hand_if_the_halves_choose_differently():
    correct = np.array([[1, 0, 0], [0, 1, 1], [1, 0, 0], [0, 0, 1]])
    own = np.array([0, 0, 1, 1])
    value = correct[np.arange(4), own]  # right on the first question only
    # Against 0 on questions 2 and 3 of own 1: misses both, 0 is right on one. Against 1 on question 1: right.
    # Against 2 on all three that are missed: right on two.
    found = eor_analysis.lose_ratio(correct, value, own)
    assert found["estimate"] == pytest.approx((1 / 2 + 1 + 2 / 3) / 3)
    assert found["low"] <= found["estimate"] <= found["high"]
    assert eor_analysis.lose_ratio(correct, np.ones(4), own)["estimate"] is None
    assert eor_report.percent(eor_analysis.lose_ratio(correct, np.ones(4), own)) == "-"


def test_exact_match_at_the_floor_is_reported_and_containment_leads(make):
    texts, _ = simulate(0, 30, [0.7, 0.6, 0.4])
    arguments, _ = make([[f"it may be {text} or so" for text in row] for row in texts], "right")
    found = json.loads(json.dumps(analysed(arguments), allow_nan=False))
    assert found["primary"] == "contained" and list(found["measures"]) == ["contained", "em"]
    assert found["measures"]["em"]["floor"] and not found["measures"]["contained"]["floor"]
    assert found["measures"]["em"]["chosen"] == found["measures"]["contained"]["chosen"]
    page = eor_report.markdown(found)
    assert "A floor effect: no answer is right by em" in page and "nothing was learned" in page
    assert "The primary measure is contained." in page
    assert found["errors"]["kept"] == 0 and page.count("| E_r |") == 1  # all answers are long
