"""Readers of a study with separate settings: adapters, rounded weights, engines, and readers of single stages."""

import importlib.util
from unittest import mock

import pytest
from helpers.engine_server import Engine, running
from helpers.scripted import ScriptedReader
from helpers.support import byte_tokenizer, tiny_llama

from fastreader import Reader
from fastreader.errors import InputError, MissingExtraError
from fastreader.study import RunFolder, Study, dry_run, run_study
from fastreader.study.contents import named_files
from fastreader.study.models import loader
from fastreader.study.registry import check
from studies import data, rows_of, study_of, write


def values(tmp_path, **more):
    return {"data": data(tmp_path, 2), "methods": ["base"], "passages": 2, "max_new_tokens": 3, **more}


@pytest.fixture
def folder(tmp_path):
    tiny_llama().save_pretrained(tmp_path / "model")
    byte_tokenizer(chat=True).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_settings_of_a_named_reader_reach_its_load(tmp_path):
    models = {"tuned": {"model": "small", "adapter": "lora", "dtype": "float32"}}
    study = Study.of(values(tmp_path, readers=["tuned", "small"], models=models, precision="exact"))
    with mock.patch.object(Reader, "load") as load:
        loader(study)("tuned")
        loader(study)("small")
    shared = {"device": "auto", "precision": "exact"}
    assert load.call_args_list == [
        mock.call("small", **shared, dtype="float32", adapter="lora"),
        mock.call("small", **shared, dtype="auto"),
    ]


def test_a_reader_of_an_engine_answers_as_the_local_one(tmp_path, tiny_reader, folder):
    engine = Engine(tiny_reader, "vllm", "served")
    local = Study.of(values(tmp_path, readers=["local"]))
    run_study(local, tmp_path / "local", load=lambda _: tiny_reader, progress=False)
    with running(engine) as url:
        models = {"engine": {"model": f"server:{url}", "tokenizer": str(folder)}}
        study = Study.of(values(tmp_path, readers=["engine"], models=models))
        (cost,) = dry_run(study)
        assert cost.answers == 2 and not engine.seen
        done = run_study(study, tmp_path / "run", progress=False)
    assert done.failed == 0 and RunFolder(tmp_path / "run").read_json("readers.json")["engine"]["name"] == "served"
    answers = [[row["answer"] for row in rows_of(tmp_path / name).values()] for name in ("run", "local")]
    assert answers[0] == answers[1] and len(answers[0]) == 2


def test_the_files_of_a_named_reader_belong_to_the_run(tmp_path, folder):
    models = {"tuned": {"model": str(folder), "adapter": str(folder)}}
    files = named_files(Study.of(values(tmp_path, readers=["tuned"], models=models)))
    assert files["reader tuned"] == files["models.tuned.adapter"] == str(folder)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_rounded_weights(tmp_path, folder, kind):
    study = Study.of(
        values(tmp_path, readers=["rounded"], models={"rounded": {"model": str(folder), "quantised": kind}})
    )
    if importlib.util.find_spec("bitsandbytes") is None:
        with pytest.raises(MissingExtraError, match="quantised"):
            loader(study)("rounded")
        return
    assert loader(study)("rounded").describe()["dtype"] == "bitsandbytes"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"model": "server:http://x", "adapter": "lora"}, "models.m: adapter: not for a reader of an engine"),
        ({"model": "small", "tokenizer": "t", "served": "s"}, "models.m: served, tokenizer: not for a reader that is"),
        ({"model": "small", "quantised": "nf4", "adapter": "a"}, "quantised: not together with adapter"),
        ({"model": "small", "quantised": "q4"}, "models.m.quantised"),
        ({"adapter": "lora"}, "models.m.model"),
        ({"model": "small", "kind": "x"}, "models.m.kind: unknown key"),
    ],
)
def test_settings_that_do_not_fit_are_rejected(tmp_path, model, message):
    with pytest.raises(InputError, match=message):
        Study.of(values(tmp_path, models={"m": model}))


def test_a_stage_of_sure_has_its_own_reader(tmp_path):
    reader, judge = ScriptedReader(lambda prompt, i: "(a) one (b) two"), ScriptedReader(write)
    judge.name = "judge"
    method = {"method": "sure", "readers": {"validity": "judge"}}
    study = study_of(tmp_path, [method, {"method": "sure", "name": "plain"}], count=2)
    check(study)
    loaded = []

    def load(name):
        loaded.append(name)
        return judge if name == "judge" else reader

    done = run_study(study, tmp_path / "run", load=load, progress=False)
    assert done.failed == 0 and loaded == ["scripted", "judge"]
    told = [context for context, _ in judge.requests]
    own = [context for context, _ in reader.requests]
    validity = [context for context in own if context in told]
    assert len(told) == 2 * 2 * 2 and sorted(set(validity)) == sorted(set(told))  # the plain method asks its own reader
    assert len(own) > len(told)  # the rankings of both, and the validity of the plain one
    tokens = {row["method"]: row["tokens"]["calls"] for row in rows_of(tmp_path / "run").values()}
    assert tokens["sure"] == tokens["plain"]


def test_the_default_of_all_methods_may_name_a_stages_reader(tmp_path):
    study = study_of(tmp_path, ["sure"], count=1, sure={"readers": {"ranking": "judge"}})
    judge = ScriptedReader(write)
    readers = {"judge": judge, "scripted": ScriptedReader(lambda prompt, i: "(a) one (b) two")}
    run_study(study, tmp_path / "run", load=readers.__getitem__, progress=False)
    assert judge.requests and not judge.prompts
    with pytest.raises(InputError, match="readers: expected no keys besides candidates"):
        check(study_of(tmp_path, ["sure"], sure={"readers": {"reading": "judge"}}))
    with pytest.raises(InputError, match=r"readers\.ranking: expected text"):
        check(study_of(tmp_path, ["sure"], sure={"readers": {"ranking": ""}}))


def test_a_scorer_that_cannot_be_loaded_fails_before_the_run(tmp_path):
    study = study_of(tmp_path, [{"method": "moi", "model": "no-such-model"}], count=1)
    with pytest.raises(Exception, match="method 'moi': model: "):
        run_study(study, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
