"""fastreader passages: build, info, prune, and what later calls find of them."""

import json
import shutil

import pytest
from helpers.commands import run

import fastreader as fr
from fastreader.integrations.serve.passage_caches import PassageCaches
from fastreader.integrations.serve.settings import ServerSettings

TEXTS = ["The Nile is in Cairo.", "The Seine is in Paris.", "Cats sleep a lot."]


@pytest.fixture(scope="module")
def built(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("passages")
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": str(i), "text": text}) + "\n" for i, text in enumerate(TEXTS)))
    said = run("passages", "build", corpus, "--store", folder / "kept", "-m", model, "--limit", 2).stderr
    assert "read 2 passages, 0 were there" in said
    said = run("passages", "build", corpus, "--store", folder / "kept", "-m", model).stderr
    assert "read 1 passages, 2 were there" in said
    return folder


def test_what_was_built_is_known(built, model):
    reader = fr.Reader.load(model)
    cache = fr.PassageCache(folder=built / "kept")
    ranked = fr.rerank(reader, "Which river is in Cairo?", TEXTS, cache=cache)
    assert (cache.info().hits, cache.info().misses) == (3, 0)
    want = fr.rerank(reader, "Which river is in Cairo?", TEXTS)
    assert [r.value for r in ranked] == pytest.approx([r.value for r in want], abs=1e-5)


def test_a_server_knows_what_was_built_and_prune_keeps_it(built, model, tmp_path):
    """Also where servers with API keys have their own folders inside."""
    store = shutil.copytree(built / "kept", tmp_path / "kept")
    reader = fr.Reader.load(model)
    for keys, hits in (((), 3), (("key",), 0), (("key",), 3), ((), 3)):
        caches = PassageCaches(reader, ServerSettings(keys=keys, passage_folder=str(store)))
        fr.rerank(caches.readers[0], "Which river is in Cairo?", TEXTS)
        assert caches.info(0).hits == hits
    assert len(json.loads(run("passages", "info", store, "--format", "json").stdout)) == 2
    assert "removed 0 files" in run("passages", "prune", store, "--unused-days", "1").stderr
    assert len(list(store.rglob("*.safetensors"))) == 8
    assert "removed 8 files" in run("passages", "prune", store, "--max-gb", "0").stderr


@pytest.mark.parametrize("command", ["rerank", "conflicts", "attribute"])
def test_commands_use_a_folder_and_add_to_it(built, model, tmp_path, command):
    """With the same answer as without one."""
    store, one = shutil.copytree(built / "kept", tmp_path / "kept"), tmp_path / "new"
    more = {"rerank": [], "conflicts": ["-c", "the Nile", "-c", "the Seine"], "attribute": ["-a", "the Nile"]}[command]
    asked = [command, "-q", "Which river is in Cairo?", "-m", model, "--format", "json", *more]
    asked += [part for text in TEXTS for part in ("-p", text)]
    plain, known, read = (
        json.loads(run(*asked, *more).stdout) for more in ((), ("--passage-folder", store), ("--passage-folder", one))
    )
    for found in (known, read):
        assert list(numbers(found)) == pytest.approx(list(numbers(plain)), abs=0.05)
    files = [sorted(file.name for file in folder.rglob("*.safetensors")) for folder in (built, store, one)]
    assert files[0] == files[1] == files[2]


def numbers(value):
    """Yield the numbers of a JSON value, without counts of tokens and times."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key != "seconds" and "tokens" not in key:
                yield from numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, (int, float)):
        yield float(value)


def test_a_corpus_that_does_not_fit(built, model, tmp_path):
    """The rest is known to a later process, since the header stays."""
    corpus, store = tmp_path / "corpus.jsonl", tmp_path / "kept"
    texts = [f"The {i}th river is {'very ' * 20}long." for i in range(60)]
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    said = run("passages", "build", corpus, "--store", store, "-m", model, "--max-gb", "0.001").stderr
    assert "left for others: --max-gb 0.001 does not hold all" in said
    files = len(list(store.rglob("*.safetensors")))
    cache = fr.PassageCache(folder=store)
    fr.rerank(fr.Reader.load(model), "Which river is long?", texts, cache=cache)
    assert cache.info().hits == files - 1 > 0


def test_info(built, model):
    rows = json.loads(run("passages", "info", built / "kept", "--format", "json").stdout)
    assert [(row["about"]["name"], row["entries"]) for row in rows] == [(model, 4)]
    assert run("passages", "info", built / "kept", "--format", "jsonl").stdout == json.dumps(rows[0]) + "\n"
    table = run("passages", "info", built / "kept", COLUMNS="200").stdout
    assert "last used" in table and f"{rows[0]['nbytes'] / 1e6:,.1f}" in table


def test_bad_arguments(built, model, tmp_path):
    for arguments, said in (
        (["info", tmp_path], "expected a folder of passages, with passages.json"),
        (["prune", built / "kept"], "expected --max-gb, --unused-days or --keep"),
        (["prune", built / "kept", "--keep", "other"], f"--keep: expected one of {model}, got 'other'"),
        (["build", tmp_path / "none", "--store", tmp_path / "new"], "none: no such file"),
        (["build", built / "corpus.jsonl", "--store", tmp_path / "new", "--max-gb", "0"], "'--max-gb'"),
        (
            ["build", built / "corpus.jsonl", "--store", tmp_path / "new", "--stored", "int4"],
            "'--stored'",
        ),
    ):
        assert said in run("passages", *arguments, expect=2).stderr
    assert not (tmp_path / "new").exists()


def test_prune(built, model, tmp_path):
    store = tmp_path / "kept"
    run("passages", "build", built / "corpus.jsonl", "--store", store, "-m", model, "--stored", "int8")
    assert "removed 0 files" in run("passages", "prune", store, "--unused-days", "1", "--keep", model).stderr
    assert "removed 4 files" in run("passages", "prune", store, "--max-gb", "0").stderr
    assert json.loads(run("passages", "info", store, "--format", "json").stdout) == []
