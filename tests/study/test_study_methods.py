"""Methods in a study: failures, MoI and calibrations, ensembles."""

import json
from dataclasses import replace

import pytest
from helpers.scripted import ScriptedReader

from fastreader import load_examples, rerank
from fastreader.errors import InputError, OutOfBudgetError
from fastreader.moi import PositionBias
from fastreader.moi.calibration.store import SHIPPED
from fastreader.reader.prompts.template import Template
from fastreader.study import RunFolder, Study, run_study
from studies import data, rows_of, run, study_of, without_seconds, write


class Failing(ScriptedReader):
    """A reader that has no memory for question 2."""

    def generate(self, prompts, **options):
        texts = list(prompts)
        if any("Question 2?" in text for text in texts):
            raise OutOfBudgetError("no room")
        return super().generate(texts, **options)


def test_rows_that_failed_run_again(tmp_path):
    """Other rows stay. A row that fails again has its error again."""
    study = study_of(tmp_path, ["sure:base", "sure:no_retrieval"])

    first = run(study, tmp_path / "run", Failing(write))
    assert (first.rows, first.failed) == (10, 2)
    kept = {key: row for key, row in rows_of(tmp_path / "run").items() if row["error"] is None}
    again = run(study, tmp_path / "run", Failing(write), resume=True)
    assert (again.rows, again.fresh, again.failed) == (10, 2, 2)
    last = run(study, tmp_path / "run", resume=True)
    assert (last.rows, last.fresh, last.failed) == (10, 2, 0)
    rows = rows_of(tmp_path / "run")
    assert kept.items() <= rows.items()
    run(study, tmp_path / "whole")
    assert without_seconds(rows) == without_seconds(rows_of(tmp_path / "whole"))
    assert run(study, tmp_path / "run", resume=True).fresh == 0


def test_a_question_that_fails_in_an_ensemble_does_not_affect_others(tmp_path):
    study = study_of(tmp_path, ["eor"])
    assert run(study, tmp_path / "run", Failing(write)).failed == 1
    run(study, tmp_path / "whole")
    whole = without_seconds(rows_of(tmp_path / "whole"))
    for key, row in without_seconds(rows_of(tmp_path / "run")).items():
        if row["question_id"] == "q2":
            assert row["error"] == "no room"
        else:
            assert row["answer"] == whole[key]["answer"] and row["trace"] == whole[key]["trace"]


def test_moi_on_a_tree_reader(tmp_path, tiny_reader, monkeypatch):
    methods = ["base", "closed_book", "moi", "order:reversed", "order:qg", "order:oracle", "noise:gold"]
    study = study_of(tmp_path, methods, count=2, max_new_tokens=3, noise={"max_new_tokens": 3})
    done = run(study, tmp_path / "run", tiny_reader)
    rows = {(r["question_id"], r["method"]): r for r in rows_of(tmp_path / "run").values()}
    assert done.failed == 2
    assert rows["q0", "order:reversed"]["trace"]["order"] == [2, 1, 0] and rows["q0", "base"]["trace"]["order"] == [
        0,
        1,
        2,
    ]
    moi = rows["q0", "moi"]
    assert sorted(moi["trace"]["order"]) == [0, 1, 2] and len(moi["trace"]["utilities"]["utility"]) == 3
    assert (
        moi["tokens"]["total_tokens"] > moi["tokens"]["computed_tokens"] > rows["q0", "base"]["tokens"]["total_tokens"]
    )
    assert "needs a calibration" in rows["q0", "order:oracle"]["error"]
    bias = next(PositionBias.load(str(path)) for path in SHIPPED.glob("*-n3.json"))
    bias = replace(bias, reader=tiny_reader.describe())
    monkeypatch.setattr("fastreader.study.methods.moi.find", lambda *_: (bias, "cached"))
    mended = run(study, tmp_path / "run", tiny_reader, resume=True)
    assert (mended.fresh, mended.failed) == (2, 0)
    again = run_study(study, tmp_path / "run", resume=True, load=lambda name: pytest.fail("not needed"), progress=False)
    assert again.fresh == 0


def test_a_new_calibration_of_a_reader_that_ranks_is_another_study(tmp_path, tiny_reader, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))
    kept = tmp_path / "cache" / "calibrations"
    kept.mkdir(parents=True)
    readers = {"engine": tiny_reader, "ranker": tiny_reader}

    def resumed(limit):
        methods = [{"method": "moi", "model": "ranker"}]
        study = study_of(tmp_path, methods, count=5, limit=limit, max_new_tokens=2, readers=["engine"])
        return run_study(study, tmp_path / "run", load=readers.__getitem__, progress=False, resume=True)

    resumed(1)
    assert set(RunFolder(tmp_path / "run").read_json("calibrations.json")) == {"engine", "ranker"}
    (kept / f"elsewhere-r{tiny_reader.revision}-{Template().digest()}-question-n7.json").write_text("new")
    with pytest.raises(InputError, match=r"the calibration .* of (ranker|engine) is new"):
        resumed(2)


def test_a_new_or_changed_calibration_is_another_study(tmp_path, tiny_reader, monkeypatch):
    """Calibrations count by the reader's revision, under any name, and not by a name with another revision."""
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))
    name = f"elsewhere-r{tiny_reader.revision}-{Template().digest()}-question-n7.json"
    kept = tmp_path / "cache" / "calibrations" / name
    kept.parent.mkdir(parents=True)
    of_another = kept.with_name(f"scripted-r0a1b-{Template().digest()}-question-n7.json")

    def resumed(methods, limit):
        study = study_of(tmp_path, methods, count=5, limit=limit, max_new_tokens=2)
        return run(study, tmp_path / methods[0].partition(":")[0], tiny_reader, resume=True)

    resumed(["moi"], 1)
    resumed(["order:reversed"], 1)
    of_another.write_text("another")
    resumed(["moi"], 2)
    kept.write_text("first")
    with pytest.raises(InputError, match=f"the calibration {name} of scripted is new"):
        resumed(["moi"], 3)
    resumed(["order:reversed"], 2)  # what lacked it has failed
    kept.write_text("second")
    with pytest.raises(InputError, match="of scripted has changed; name a new folder"):
        resumed(["order:reversed"], 3)
    kept.unlink()
    assert resumed(["moi"], 3).fresh == 1
    with pytest.raises(InputError, match="of scripted is gone"):
        resumed(["order:reversed"], 3)


def test_base_has_the_prompt_of_mois_reading(tmp_path, tiny_reader):
    from fastreader.scoring.reading import read
    from fastreader.study.cells import questions_of

    study = study_of(tmp_path, ["base"], count=2, max_new_tokens=5)
    run(study, tmp_path / "run", tiny_reader)
    for example in questions_of(study):
        wanted = read(tiny_reader, example, max_new_tokens=5)
        row = next(r for r in rows_of(tmp_path / "run").values() if r["question_id"] == example.id)
        assert row["answer"] == wanted.text
        assert (row["tokens"]["total_tokens"], row["tokens"]["computed_tokens"]) == (
            wanted.stats.total_tokens,
            wanted.stats.computed_tokens,
        )


def test_a_voter_is_fitted_and_kept(tmp_path):
    study = study_of(tmp_path, ["eor"]).model_copy(update={"metric": "em"})
    fitting = study.model_copy(update={"eor": study.eor.model_copy(update={"fit": True})})
    run(fitting, tmp_path / "run")
    voter = json.loads((tmp_path / "run" / "voter.json").read_text())["scripted"]["eor"]
    assert voter["questions"] == 5 and voter["voter"]["fitted"]["retrievers"] == ["R@1", "R", "ReFree"]


def asked_by_eor(tmp_path, folder, texts, resume=False, method="eor"):
    """Return the prompts of an ensemble with these texts for two questions."""
    reader = ScriptedReader(write)
    more = {} if texts is None else {"texts": texts}
    values = {"data": data(tmp_path, 2), "reader": "scripted", "methods": [method]}
    study = Study.of({**values, "eor": {"retrievers": ["R@1", "ReFree"], **more}}, folder=tmp_path)
    run(study, tmp_path / folder, reader, resume=resume)
    return reader.prompts


def test_the_ensembles_texts(tmp_path):
    default, short = asked_by_eor(tmp_path, "default", None), asked_by_eor(tmp_path, "short", "short")
    assert len(default) == len(short) == 4
    assert not any("Leo Tolstoy" in prompt for prompt in default)
    assert all("Leo Tolstoy" in prompt and prompt.endswith("Answer:") for prompt in short)
    assert asked_by_eor(tmp_path, "named", "default") == default
    (tmp_path / "texts.json").write_text('{"read_lead": "Look:\\n"}')
    from_file = asked_by_eor(tmp_path, "file", "texts.json")
    assert from_file == asked_by_eor(tmp_path, "values", {"read_lead": "Look:\n"})
    assert [prompt.startswith("Look:\n") for prompt in from_file] == [True, False] * 2  # ReFree reads nothing
    assert asked_by_eor(tmp_path, "own", "short", method={"method": "eor", "texts": "texts.json"}) == from_file


def test_a_run_keeps_its_ensembles_texts(tmp_path):
    file = tmp_path / "texts.json"
    file.write_text('{"answer_lead": "A:"}')
    asked_by_eor(tmp_path, "run", "texts.json")
    own = {"method": "eor", "texts": "texts.json"}
    asked_by_eor(tmp_path, "own", None, method=own)
    assert asked_by_eor(tmp_path, "run", "texts.json", resume=True) == []
    with pytest.raises(InputError, match=r"holds a run of another study: eor was .*, is now"):
        asked_by_eor(tmp_path, "run", "short", resume=True)
    file.write_text('{"answer_lead": "Reply:"}')
    with pytest.raises(InputError, match=r"holds a run of another study: eor was .*A:"):
        asked_by_eor(tmp_path, "run", "texts.json", resume=True)
    with pytest.raises(InputError, match=r"the method 'eor' was .*A:.*, is now"):
        asked_by_eor(tmp_path, "own", None, resume=True, method=own)
    file.unlink()
    assert RunFolder(tmp_path / "run").study().eor.texts["answer_lead"] == "A:"


def test_rerank_reads_in_the_order_of_relevance(tmp_path, tiny_reader):
    study = study_of(tmp_path, ["rerank"], count=2, max_new_tokens=3)
    run(study, tmp_path / "run", tiny_reader)
    rows = {row["question_id"]: row for row in rows_of(tmp_path / "run").values()}
    assert len(rows) == 2
    for example in load_examples(study.data):
        ranking = rerank(tiny_reader, example)
        trace = rows[example.id]["trace"]
        assert trace["order"] == ranking.indices
        assert trace["order_scores"] == pytest.approx([result.relevance for result in ranking], abs=1e-6)


def test_a_loader_must_return_a_reader(tmp_path):
    with pytest.raises(InputError, match="load: expected a function that returns a reader, got 'a name'"):
        run(study_of(tmp_path, ["base"]), tmp_path / "run", "a name")
