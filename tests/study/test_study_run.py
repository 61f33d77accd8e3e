import json
import re
from collections import Counter
from pathlib import Path

import pytest
from helpers.scripted import ScriptedReader

from fastreader.errors import ContextOverflowError, InputError
from fastreader.study import RunFolder, Study
from fastreader.study.contents import contents, named_files
from studies import METHODS, data, rows_of, run, study_of, without_seconds, write


def test_one_row_per_question_and_method(tmp_path):
    study = study_of(tmp_path)
    done = run(study, tmp_path / "run")
    rows = list(rows_of(tmp_path / "run").values())
    assert done.rows == done.fresh == len(rows) == 5 * len(METHODS) and done.failed == done.left_out == 0
    assert Counter(row["method"] for row in rows) == dict.fromkeys(METHODS, 5)
    by_method = {row["method"]: row for row in rows if row["question_id"] == "q1"}
    base = by_method["sure:base"]
    assert base["answer"] == "a1" and (base["em"], base["f1"], base["contained"]) == (1.0, 1.0, 1.0)
    assert by_method["sure"]["trace"]["candidates"] and by_method["sure"]["trace"]["summaries"]
    near, far = (by_method[f"noise:random:2:{place}"]["trace"]["order"] for place in ("near", "far"))
    assert [entry["kind"] for entry in near] == ["random", "random", "gold"] and near[-1]["index"] == 1
    assert [entry["kind"] for entry in far] == ["gold", "random", "random"] and far[0] == near[-1]
    assert all(entry["text"].startswith("Text") and "index" not in entry for entry in far[1:])
    votes = by_method["eor"]["trace"]["ensemble"]
    assert list(votes["predictions"]) == ["R@1", "R", "ReFree"] and votes["vote"]["winner"] is not None


def test_methods_and_questions_share_calls(tmp_path):
    calls = []

    class Counting(ScriptedReader):
        def generate(self, prompts, **options):
            texts = list(prompts)
            calls.append(len(texts))
            return super().generate(texts, **options)

    run(
        study_of(tmp_path, ["noise:gold", "noise:random:2:far", "noise:closed_book"]), tmp_path / "run", Counting(write)
    )
    assert calls == [15]
    calls.clear()
    run(study_of(tmp_path, ["noise:gold", "noise:random:2:far"], batch_size=2), tmp_path / "other", Counting(write))
    assert calls == [4, 4, 2]


class Killed(BaseException):
    """The end of the process."""


@pytest.mark.parametrize("last", [1, 2, 3, 5, 8])
def test_a_killed_run_resumes_and_repeats_no_call(tmp_path, last):
    study = study_of(tmp_path, batch_size=2)
    run(study, tmp_path / "whole")
    asked = Counter()

    class Dying(ScriptedReader):
        calls = 0

        def generate(self, prompts, **options):
            texts = list(prompts)
            self.calls += 1
            if self.calls > last:
                raise Killed
            asked.update((text, str(sorted(options.items()))) for text in texts)
            return super().generate(texts, **options)

    with pytest.raises(Killed):
        run(study, tmp_path / "run", Dying(write))
    with pytest.raises(InputError, match="holds a run already"):
        run(study, tmp_path / "run")
    living = Dying(write)
    living.calls = -1000
    done = run(study, tmp_path / "run", living, resume=True)
    assert done.rows == 5 * len(METHODS)
    assert without_seconds(rows_of(tmp_path / "run")) == without_seconds(rows_of(tmp_path / "whole"))
    assert set(asked.values()) == {1}


def test_a_torn_line_is_written_again(tmp_path):
    study = study_of(tmp_path)
    run(study, tmp_path / "run")
    file = tmp_path / "run" / "results.jsonl"
    whole = without_seconds(rows_of(tmp_path / "run"))
    file.write_bytes(file.read_bytes()[:-40])
    assert run(study, tmp_path / "run", resume=True).fresh == 1
    assert without_seconds(rows_of(tmp_path / "run")) == whole


def test_another_study_is_rejected(tmp_path):
    run(study_of(tmp_path), tmp_path / "run")
    for change, message in [
        ({"passages": 2}, "passages was 10, is now 2"),
        ({"seeds": [1]}, r"seeds was \[0\], is now \[1\]"),
        ({"methods": METHODS[1:]}, "results of the method 'sure:base'"),
        ({"methods": [{"method": "sure", "name": "sure:base"}, *METHODS[1:]]}, "the method 'sure:base' was"),
    ]:
        with pytest.raises(InputError, match=f"holds a run of another study: .*{message}"):
            run(study_of(tmp_path, **{"methods": METHODS, **change}), tmp_path / "run", resume=True)
    changed = json.loads((tmp_path / "q.jsonl").read_text().splitlines()[0])
    changed["question"] = "Something else?"
    (tmp_path / "q.jsonl").write_text(json.dumps(changed) + "\n")
    study = Study.of({**study_of(tmp_path).to_dict()})
    (tmp_path / "q.jsonl").write_text(json.dumps(changed) + "\n")
    with pytest.raises(InputError, match="made from another question or other texts"):
        run(study, tmp_path / "run", resume=True)


def folder_of(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != "cache.sqlite"}


def test_a_rejected_study_leaves_the_folder_unchanged(tmp_path):
    run(study_of(tmp_path), tmp_path / "run")
    before, rows = folder_of(tmp_path / "run"), (tmp_path / "q.jsonl").read_text().splitlines()
    last = json.loads(rows[-1]) | {"question": "Something else?"}
    study = study_of(tmp_path, metric="f1", limit=5)
    (tmp_path / "q.jsonl").write_text("\n".join([*rows[:-1], json.dumps(last)]))
    with pytest.raises(InputError, match="made from another question or other texts"):
        run(study, tmp_path / "run", resume=True)
    assert folder_of(tmp_path / "run") == before


@pytest.fixture
def filed(tmp_path):
    """A study that names files, and the files."""
    files = {key: tmp_path / name for key, name in (("template", "t.toml"), ("noise.random", "pool.jsonl"))}
    files["eor.sources.Wiki"] = tmp_path / "wiki.jsonl"
    files["template"].write_text("")
    for key in ("noise.random", "eor.sources.Wiki"):
        texts = [{"text": f"A question elsewhere: Elsewhere {i}."} for i in range(4)]
        files[key].write_text("".join(json.dumps(text) + "\n" for text in texts))
    values = {"data": data(tmp_path, 2), "readers": ["scripted"], "methods": ["noise:random:2:far", "eor"]}
    values |= {"template": str(files["template"]), "noise": {"random": str(files["noise.random"])}}
    values["eor"] = {"retrievers": ["R@1", "Wiki@1"], "sources": {"Wiki": str(files["eor.sources.Wiki"])}}
    return lambda: Study.of(values), files


@pytest.mark.parametrize("key", ["template", "noise.random", "eor.sources.Wiki"])
def test_a_changed_file_is_rejected(tmp_path, filed, key):
    study, files = filed
    run(study(), tmp_path / "run")
    before = folder_of(tmp_path / "run")
    assert run(study(), tmp_path / "run", resume=True).fresh == 0
    words = files[key].read_text()
    files[key].write_text(words.replace("Elsewhere", "Somewhere") or 'header = "Read.\\n"\n')
    with pytest.raises(InputError, match=f"run of another study: {key}: {files[key]} has changed"):
        run(study(), tmp_path / "run", resume=True)
    assert folder_of(tmp_path / "run") == before
    run(study(), tmp_path / "other")
    files[key].write_text(words)
    assert run(study(), tmp_path / "run", resume=True).fresh == 0


def model_in(folder):
    """Return the file of a model's weights, which nothing loads."""
    folder.mkdir()
    weights = folder / "model.safetensors"
    weights.write_bytes(b"before")
    return weights


def test_a_reader_with_changed_weights_is_rejected(tmp_path):
    weights = model_in(tmp_path / "m")
    study = study_of(tmp_path, METHODS[:1], count=2, readers=[str(weights.parent)])
    run(study, tmp_path / "run")
    before = folder_of(tmp_path / "run")
    weights.write_bytes(b"since then")
    with pytest.raises(InputError, match=f"reader {weights.parent}: .* has changed"):
        run(study, tmp_path / "run", resume=True)
    assert folder_of(tmp_path / "run") == before
    weights.write_bytes(b"before")
    assert run(study, tmp_path / "run", resume=True).fresh == 0


def test_a_judge_with_changed_weights_is_rejected(tmp_path):
    """Even if the study left the measure out in between: its values are still in the folder."""
    weights = model_in(tmp_path / "judge")
    name = f"preferred:{weights.parent}"
    judged, plain = (study_of(tmp_path, METHODS[:1], count=2, measures=each) for each in ([name], []))
    run(plain, tmp_path / "run")
    run(judged, tmp_path / "run", resume=True)
    run(plain, tmp_path / "run", resume=True)
    before = folder_of(tmp_path / "run")
    weights.write_bytes(b"since then")
    assert run(plain, tmp_path / "run", resume=True).fresh == 0
    with pytest.raises(InputError, match=f"measure {name}: .* has changed"):
        run(judged, tmp_path / "run", resume=True)
    assert folder_of(tmp_path / "run") == before
    weights.write_bytes(b"before")
    assert run(judged, tmp_path / "run", resume=True).fresh == 0


def test_models_of_measures_and_similarities_belong_to_the_run(tmp_path):
    """Of the study, of its methods and of a voter that it names."""
    folders = [tmp_path / name for name in ("bem", "nli", "bert", "voter", "reader")]
    for folder in folders:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    bem, nli, bert, voter, reader = map(str, folders)
    values = {
        "data": data(tmp_path, 2),
        "readers": ["scripted"],
        "methods": ["eor", {"method": "eor", "name": "own", "similarities": [f"bertscore:{bert}"]}],
        "metric": f"llm_accuracy:{reader}",
        "measures": [f"equivalent:bem:{bem}", f"equivalent:reader:{reader}", "equivalent:nli:org/model"],
        "eor": {
            "similarities": [f"nli:{nli}", "exact", "nli:reader"],
            "voter": {"similarities": [f"nli:{voter}"], "parameters": {}},
        },
    }
    study = Study.of(values)
    assert {key: file for key, file in named_files(study).items() if key[:7] in ("measure", "similar")} == {
        f"measure equivalent:bem:{bem}": bem,
        f"measure equivalent:reader:{reader}": reader,
        f"measure llm_accuracy:{reader}": reader,
        f"similarity bertscore:{bert}": bert,
        f"similarity nli:{nli}": nli,
        f"similarity nli:{voter}": voter,
    }
    before = contents(study)
    (folders[0] / "config.json").write_text('{"a": 1}')
    changed = {key for key, value in contents(study).items() if value != before[key]}
    assert changed == {f"measure equivalent:bem:{bem}"}


def test_a_reader_that_changed_under_its_name_is_rejected(tmp_path):
    """The revision of a hub name moved, or "auto" chose another type."""
    reader = ScriptedReader(write)
    run(study_of(tmp_path, METHODS[:1], limit=2), tmp_path / "run", reader)
    before, about = folder_of(tmp_path / "run"), reader.describe()
    more = study_of(tmp_path, METHODS[:1], limit=4)
    for change in ({"revision": "since"}, {"dtype": "bfloat16"}):
        reader.describe = lambda change=change: about | change
        with pytest.raises(InputError, match=f"the reader scripted was .*is now .*{next(iter(change.values()))}"):
            run(more, tmp_path / "run", reader, resume=True)
        rows = ("results.jsonl", "readers.json")
        assert {name: before[name] for name in rows} == {n: folder_of(tmp_path / "run")[n] for n in rows}
    with pytest.raises(InputError, match="the reader scripted was"):  # the method that it did not begin may go again
        run(study_of(tmp_path, METHODS[:2], limit=4), tmp_path / "run", reader, resume=True)
    other = study_of(tmp_path, [METHODS[0], {"method": METHODS[1], "k": 3}], limit=4)
    with pytest.raises(InputError, match="the reader scripted was"):  # and be another, as it has no row
        run(other, tmp_path / "run", reader, resume=True)
    reader.describe = lambda: about | {"device": "another machine"}
    assert run(more, tmp_path / "run", reader, resume=True).fresh == 2


def test_a_file_that_changes_between_runs_of_one_process_is_read_again(tmp_path, filed):
    study, files = filed
    run(study(), tmp_path / "run")
    for key in ("noise.random", "eor.sources.Wiki"):
        files[key].write_text(files[key].read_text().replace("Elsewhere", "Somewhere"))
    run(study(), tmp_path / "other")
    for row in rows_of(tmp_path / "other").values():
        assert "Somewhere" in json.dumps(row) and "Elsewhere" not in json.dumps(row)


def test_a_run_without_digests_resumes_when_its_files_are_vouched_for(tmp_path, filed):
    study, files = filed
    run(study(), tmp_path / "run")
    kept = tmp_path / "run" / "files.json"
    kept.unlink()
    with pytest.raises(InputError, match=r"keeps only the path of .*, which") as refused:
        run(study(), tmp_path / "run", resume=True)
    vouched = re.search(r"write (\{.*\}) into (\S+)$", str(refused.value))
    assert str(files["eor.sources.Wiki"]) in str(refused.value) and vouched[2] == str(kept)
    kept.write_text(vouched[1])
    assert run(study(), tmp_path / "run", resume=True).fresh == 0


def test_a_run_that_names_no_files_resumes_without_digests(tmp_path):
    run(study_of(tmp_path), tmp_path / "run")
    (tmp_path / "run" / "files.json").unlink()
    assert run(study_of(tmp_path), tmp_path / "run", resume=True).fresh == 0
    assert RunFolder(tmp_path / "run").read_json("files.json") == {}


def test_the_primary_contrast_is_stated_before_the_first_answer(tmp_path):
    stated = {"methods": METHODS[:3], "baseline": "sure:base", "primary": "sure"}
    run(study_of(tmp_path, **stated), tmp_path / "run")
    for change, now in [
        ({"primary": "noise:gold"}, "noise:gold against sure:base by contained"),
        ({"primary": None}, "none"),
        ({"metric": "em"}, "sure against sure:base by em"),
        ({"baseline": "noise:gold"}, "sure against noise:gold by contained"),
    ]:
        with pytest.raises(InputError, match=f"it was sure against sure:base by contained, is now {now}"):
            run(study_of(tmp_path, **{**stated, **change}), tmp_path / "run", resume=True)
    assert RunFolder(tmp_path / "run").study().primary == "sure"
    run(study_of(tmp_path, METHODS[:2]), tmp_path / "other")
    with pytest.raises(InputError, match="it was none, is now sure against sure:base"):
        run(study_of(tmp_path, METHODS[:2], primary="sure", baseline="sure:base"), tmp_path / "other", resume=True)
    run(study_of(tmp_path, METHODS[:2], metric="em"), tmp_path / "other", resume=True)  # nothing was stated


def test_a_stored_study_needs_no_files(tmp_path):
    pool, template = tmp_path / "pool.jsonl", tmp_path / "template.toml"
    pool.write_text(json.dumps({"text": "Elsewhere."}) + "\n")
    template.write_text("")
    study = study_of(tmp_path, METHODS[:3], template=str(template), noise={"random": str(pool)})
    run(study, tmp_path / "run")
    for file in (pool, template, tmp_path / "q.jsonl"):
        file.unlink()
    assert RunFolder(tmp_path / "run").study() == study
    with pytest.raises(InputError, match="no such file"):
        Study.of(study.to_dict())
    from fastreader.report import Report

    assert "sure:<wbr>base" in Report.of(tmp_path / "run").html()


def test_folders_without_a_run(tmp_path):
    study = study_of(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="expected a folder"):
        run(study, tmp_path / "file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="no run of a study"):
        run(study, tmp_path / "full")
    with pytest.raises(InputError, match="not the folder of a run"):
        RunFolder(tmp_path).study()


def test_methods_and_questions_can_be_added(tmp_path):
    run(study_of(tmp_path, METHODS[:2], limit=2), tmp_path / "run")
    done = run(study_of(tmp_path, METHODS[:3], limit=4), tmp_path / "run", resume=True)
    assert (done.rows, done.fresh) == (12, 8)


def test_questions_cannot_be_removed(tmp_path):
    run(study_of(tmp_path, METHODS[:2], limit=3), tmp_path / "run")
    before = folder_of(tmp_path / "run")
    with pytest.raises(InputError, match="holds a run of another study: it has results of the question 'q2'"):
        run(study_of(tmp_path, METHODS[:2], limit=2), tmp_path / "run", resume=True)
    assert folder_of(tmp_path / "run") == before


def test_no_questions(tmp_path):
    study = study_of(tmp_path)
    (tmp_path / "q.jsonl").write_text("")
    with pytest.raises(InputError, match="expected at least one"):
        run(study, tmp_path / "run")


def test_without_gold_flags_methods_that_need_them_are_left_out(tmp_path):
    done = run(study_of(tmp_path, gold=False), tmp_path / "run")
    rows = list(rows_of(tmp_path / "run").values())
    assert done.left_out == 15 and done.failed == 0
    for row in rows:
        needs = row["method"].startswith("noise:")
        assert (row["answer"] is None) is needs and (row["em"] is None) is needs
        assert ("is flagged as gold" in (row["left_out"] or "")) is needs


def test_a_question_that_fails_has_a_row_with_the_error(tmp_path):
    class Narrow(ScriptedReader):
        def generate(self, prompts, **options):
            texts = list(prompts)
            if any("Question 2?" in text and "Text" in text for text in texts):
                raise ContextOverflowError("a prompt is longer than the context")
            return super().generate(texts, **options)

    study = study_of(tmp_path, ["sure:base", "sure:no_retrieval"])
    done = run(study, tmp_path / "run", Narrow(write))
    failed = [row for row in rows_of(tmp_path / "run").values() if row["error"]]
    assert done.failed == len(failed) == 1 and done.rows == 10
    assert failed[0]["question_id"] == "q2" and "longer than the context" in failed[0]["error"]


def test_methods_that_draw_run_once_per_seed(tmp_path):
    run(study_of(tmp_path, ["sure:base", "noise:random:2:far"], seeds=[0, 1, 2]), tmp_path / "run")
    rows = list(rows_of(tmp_path / "run").values())
    assert Counter(row["method"] for row in rows) == {"sure:base": 5, "noise:random:2:far": 15}
    drawn = {row["seed"]: row["trace"]["order"] for row in rows if row["question_id"] == "q0" and row["seed"] > 0}
    assert drawn[1] != drawn[2]


def test_questions_of_a_table(tmp_path):
    own = study_of(tmp_path, ["sure:base"], count=3)
    assert run(own, tmp_path / "file").failed == 0
    rows = [json.loads(line) for line in Path(own.data).read_text().splitlines()]
    named = Study.of({**own.to_dict(), "data": "a table"})
    finished = run(named, tmp_path / "table", questions=rows)
    assert finished.fresh == 3
    for key, row in without_seconds(rows_of(tmp_path / "table")).items():
        other = without_seconds(rows_of(tmp_path / "file"))[key]
        assert {**row, "settings": None} == {**other, "settings": None}  # which have the name of the data
    assert run(named, tmp_path / "table", questions=iter(rows), resume=True).fresh == 0
    with pytest.raises(InputError, match="no such file"):
        run(named, tmp_path / "none")
    with pytest.raises(InputError, match=r"questions\[0\]: expected a mapping or an Example, got 1"):
        run(named, tmp_path / "none", questions=[1])
