"""fastreader over Ray: the real library, two actors on this machine, against the direct call."""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
from helpers.support import framework

import fastreader as fr
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.errors import FastreaderError, InputError, NotReloadableError

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = framework("ray", "ray")
framework("ray.data", "ray")

from fastreader.integrations.ray import (  # noqa: E402
    ActorPool,
    ReaderReference,
    rerank,
    rerank_dataset,
    score,
    score_dataset,
)

pytestmark = pytest.mark.timeout(300)  # two actors load readers, on two cores
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import this file
POOL = ActorPool(actors=2, batch_size=7)
TEXTS = ["The Nile is a river.", "Bread is baked.", "A long river flows.", "Cats sleep.", "Rain falls."]


@pytest.fixture(scope="module")
def connected():
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", logging_level="warning"
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def reader(model):
    return fr.Reader.load(model, device="cpu", precision="exact", deterministic=True)


def examples(count=200):
    made = []
    for i in range(count):
        passages = [
            fr.Passage(f"{text} {i % 7}", f"T{j}", f"d{j}", 3.0 - j) for j, text in enumerate(TEXTS[: 2 + i % 4])
        ]
        made.append(fr.Example(f"Which river is {i} long?", passages, ["Nile"], ["the Nile", "bread"], f"q{i}"))
    return made


def values(results):
    """Return results by id, without what depends on the time, the batch of a question or the load of its reader."""
    out = {}
    for result in results:
        assert result.id not in out
        row = {k: v for k, v in result.to_dict().items() if k not in ("seconds", "stats", "computed_tokens")}
        if "reader" in row:  # the first load after a change of the code checks in full, and the others take its verdict
            row["reader"] = {k: v for k, v in row["reader"].items() if k != "check"}
        out[result.id] = row
    return out


def fields_apart(found, direct):
    """Return the fields of each id that differ, with both values."""
    return {
        (id, field): (found[id][field], direct[id][field])
        for id in found.keys() & direct.keys()
        for field in direct[id]
        if found[id][field] != direct[id][field]
    }


class Marked:
    """Loads a reader and notes the actor's process. `calls` passes later the first actor to get there dies."""

    def __init__(self, model, folder, calls=None):
        self.model, self.folder, self.calls = model, folder, calls

    def __call__(self):
        reader = fr.Reader.load(self.model, device="cpu", precision="exact", deterministic=True)
        (self.folder / str(os.getpid())).touch()
        if self.calls is not None:
            plain, seen = reader.score, []

            def score(*given, **options):
                seen.append(0)
                if len(seen) == self.calls:
                    try:
                        (self.folder / "died").touch(exist_ok=False)
                    except FileExistsError:
                        pass
                    else:
                        os._exit(1)
                return plain(*given, **options)

            reader.score = score
        return reader

    def reference(self):
        return ReaderReference("m", self, ())


def test_200_questions_over_two_actors_equal_the_direct_call(connected, model, reader, tmp_path):
    direct = values(fr.rerank(reader, examples()))
    found = values(rerank(Marked(model, tmp_path).reference(), examples(), pool=POOL))
    assert len(list(tmp_path.iterdir())) == 2  # both actors loaded a reader
    assert found == direct and len(found) == 200
    ordered = list(rerank(reader, examples(40), pool=POOL, ordered=True, top_n=1))
    assert [ranked.id for ranked in ordered] == [f"q{i}" for i in range(40)]
    assert all(ranked.indices == [direct[ranked.id]["results"][0]["index"]] for ranked in ordered)


def test_scores_equal_the_direct_call(connected, reader):
    direct = values(fr.score_permutations(reader, examples(30), token_logprobs=True))
    found = values(score(reader, examples(30), pool=POOL, token_logprobs=True))
    assert fields_apart(found, direct) == {} and found.keys() == direct.keys()


def test_actors_share_a_folder_of_passages(connected, reader, tmp_path):
    """What one read, and the call before, the others find. A cache without a folder cannot be sent to them."""
    direct = {ranked.id: ranked for ranked in fr.rerank(reader, examples(40))}
    cache = fr.PassageCache(folder=tmp_path / "kept")
    for _ in range(2):
        for ranked in rerank(reader, examples(40), pool=POOL, cache=cache):
            want = {r.index: r.value for r in direct[ranked.id]}
            assert {r.index: r.value for r in ranked} == pytest.approx(want, abs=1e-5)
        files = list((tmp_path / "kept").glob("*/*.safetensors"))
        assert len(files) == 36  # 5 texts with 7 numbers each, and one header
        assert all(file.stat().st_mtime > 1 for file in files)  # written, then found
        for file in files:
            os.utime(file, (1, 1))
    with pytest.raises(NotReloadableError, match=r"cache: expected a PassageCache\(folder="):
        list(rerank(reader, examples(2), pool=POOL, cache=fr.PassageCache()))


def test_a_relevance_model_ranks_in_actors(connected, tmp_path):
    from helpers.rerankers import logit_score

    _, folder = logit_score(tmp_path, "Qwen3", prompts={"web": "Web query."})
    reader, given = fr.Reader.load(str(folder), device="cpu", precision="exact", check="off"), examples(20)
    how = {"instruction": "web", "top_n": 2}
    direct = {found.id: found for found in fr.rerank(reader, given, **how)}
    found = {ranked.id: ranked for ranked in rerank(reader, given, pool=POOL, **how)}
    assert found.keys() == direct.keys()
    for id, ranked in found.items():
        assert ranked.method == "relevance" and ranked.indices == direct[id].indices
        assert [r.value for r in ranked] == pytest.approx([r.value for r in direct[id]], abs=1e-5)


def test_an_actor_that_dies_midway(connected, model, reader, tmp_path):
    found = values(rerank(Marked(model, tmp_path, calls=3).reference(), examples(), pool=POOL))
    assert (tmp_path / "died").exists() and len(list(tmp_path.iterdir())) == 4  # three loads: two, and one after it
    assert found == values(fr.rerank(reader, examples()))


def test_an_actor_that_is_killed_midway(connected, model, reader, tmp_path):
    log = tmp_path / "out.jsonl"
    (tmp_path / "pids").mkdir()
    with ResultLog(log) as results:
        found = []
        for ranked in rerank(Marked(model, tmp_path / "pids").reference(), examples(), pool=POOL, log=results):
            found.append(ranked)
            if len(found) == 10:
                os.kill(int(min(p.name for p in (tmp_path / "pids").iterdir())), signal.SIGKILL)
    assert len(list((tmp_path / "pids").iterdir())) == 3
    assert values(found) == values(fr.rerank(reader, examples()))
    rows = [row["id"] for row in iter_results(log)]
    assert len(rows) == 200 and set(rows) == {f"q{i}" for i in range(200)}


def test_resumed_by_id(connected, reader, tmp_path):
    path = tmp_path / "out.jsonl"
    with ResultLog(path) as log:
        stream = rerank(reader, examples(40), pool=POOL, log=log)
        first = [next(stream) for _ in range(9)]
        stream.close()
    assert len(list(iter_results(path))) == 9
    with ResultLog(path, resume=True) as log:
        rest = list(rerank(reader, examples(40), pool=POOL, log=log))
        assert len(rest) == 31 and len(log) == 40
        assert list(rerank(reader, examples(40), pool=POOL, log=log)) == []
    assert values(first + rest) == values(fr.rerank(reader, examples(40)))
    other = dataclasses.replace(examples(1)[0], question="Another?")
    with (
        ResultLog(path, resume=True) as log,
        pytest.raises(InputError, match="'q0' has a result already, made from an"),
    ):
        list(rerank(reader, [other], pool=POOL, log=log))


def test_ids(connected, reader):
    with pytest.raises(InputError, match="examples: expected ids that differ, got 'q1' twice"):
        list(rerank(reader, [*examples(3), examples(2)[1]], pool=POOL))
    nameless = [dataclasses.replace(example, id=None) for example in examples(3)]
    assert {ranked.id for ranked in rerank(reader, nameless, pool=POOL)} == {"0", "1", "2"}
    assert list(rerank(reader, [], pool=POOL)) == []


def test_a_question_that_cannot_be_ranked(connected, reader):
    long = dataclasses.replace(examples(1)[0], question="why " * 2000, id="long")
    given = [*examples(10), long]
    skipped = []
    found = values(rerank(reader, given, pool=POOL, on_error=lambda id, error: skipped.append((id, error))))
    assert found.keys() == {f"q{i}" for i in range(10)}
    ((id, error),) = skipped
    assert id == "long" and type(error) is fr.errors.ContextOverflowError and str(error).startswith("id long: ")
    with pytest.raises(fr.errors.ContextOverflowError, match="id long: "):
        list(rerank(reader, given, pool=POOL))
    with pytest.raises(InputError, match="method: expected one of"):
        list(rerank(reader, examples(2), pool=POOL, method="best"))


def test_a_reader_that_cannot_be_loaded_in_an_actor(connected, tiny_reader, model, tmp_path):
    with pytest.raises(NotReloadableError, match="made from a model object"):
        list(rerank(tiny_reader, examples(3), pool=POOL))
    with pytest.raises(InputError, match="reader: expected a Reader, or the name or path"):
        list(rerank(7, examples(3), pool=POOL))
    folder = shutil.copytree(model, tmp_path / "m")
    gone = fr.Reader.load(folder)
    shutil.rmtree(folder)
    with pytest.raises(NotReloadableError, match=rf"an actor raised ModelNotFoundError: .*{folder}"):
        list(rerank(gone, examples(3), pool=POOL))
    with pytest.raises(InputError, match=r"options: expected no keys besides device, .*got .devise"):
        ReaderReference.of(model, devise="cpu")


def test_an_actor_that_always_dies_ends_the_call(connected, model, tmp_path):
    class Dying(Marked):
        def __call__(self):
            reader = super().__call__()
            reader.score = lambda *given, **options: os._exit(1)
            return reader

    with pytest.raises(FastreaderError, match="an actor died again and again in one batch"):
        list(rerank(Dying(model, tmp_path).reference(), examples(3), pool=ActorPool(batch_size=3)))
    assert len(list(tmp_path.iterdir())) == 4  # the first try and three more


def test_datasets(connected, reader, tmp_path):
    fr.data.save_examples(examples(20), tmp_path / "questions.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "questions.jsonl").read_text().splitlines()]
    dataset = ray.data.from_items(rows, override_num_blocks=3)
    ranked = {row["id"]: row for row in rerank_dataset(dataset, reader, pool=POOL, top_n=2).take_all()}
    for direct in fr.rerank(reader, examples(20), top_n=2):
        row = ranked.pop(direct.id)
        assert row["error"] is None and not row["fatal"]
        result = json.loads(row["result"])
        assert [r["index"] for r in result["results"]] == direct.indices
        assert [r["value"] for r in result["results"]] == [r.value for r in direct]
        assert result["results"][0]["passage"]["title"] == direct[0].passage.title
    assert not ranked
    scored = {row["id"]: json.loads(row["result"]) for row in score_dataset(dataset, reader, pool=POOL).take_all()}
    for direct in fr.score_permutations(reader, examples(20)):
        assert scored[direct.id]["logprobs"] == direct.to_dict()["logprobs"]


def test_a_call_starts_ray_and_stops_it(model, tmp_path):
    code = (
        "import ray, fastreader as fr, sys\n"
        "from fastreader.integrations.ray import ActorPool, rerank\n"
        "print([r.indices for r in rerank(sys.argv[1], [fr.Example('Why?', ['a', 'b'])], pool=ActorPool())])\n"
        "assert not ray.is_initialized()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, model], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (indices,) = json.loads(done.stdout)
    assert sorted(indices) == [0, 1]


def test_no_cluster_at_the_address(model):
    code = (
        "import fastreader as fr, sys\n"
        "from fastreader.integrations.ray import ActorPool, rerank\n"
        "list(rerank(sys.argv[1], [fr.Example('Why?', ['a', 'b'])], pool=ActorPool(address='127.0.0.1:1')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, model], capture_output=True, text=True, check=False)
    assert "InputError: address: expected 'local', 'auto' or the HOST:PORT" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("name", "value"), [("actors", 0), ("gpus", -1), ("cpus", 0), ("batch_size", 0), ("address", "")]
)
def test_a_pool_checks_its_numbers(name, value):
    with pytest.raises(InputError, match=f"{name}: expected"):
        ActorPool(**{name: value})


def test_a_cached_model_folder_is_the_same_in_actors(connected, model, monkeypatch, tmp_path):
    class Noting(Marked):
        def __call__(self):
            (self.folder / "noted").write_text(os.environ.get("FASTREADER_CACHE", "none"))
            return super().__call__()

    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "models"))
    assert len(list(rerank(Noting(model, tmp_path).reference(), examples(2), pool=ActorPool()))) == 2
    assert pathlib.Path(tmp_path / "noted").read_text() == str(tmp_path / "models")


def test_an_outcome_that_comes_twice_or_never(connected, reader, monkeypatch):
    plain = ActorPool.map

    def twice(self, dataset, *given):
        return plain(self, dataset, *given).union(plain(self, dataset, *given))

    def never(self, dataset, *given):
        return plain(self, dataset, *given).filter(lambda row: row["id"] != "q3")

    monkeypatch.setattr(ActorPool, "map", twice)
    assert values(rerank(reader, examples(9), pool=ActorPool())).keys() == {f"q{i}" for i in range(9)}  # none twice
    monkeypatch.setattr(ActorPool, "map", never)
    with pytest.raises(FastreaderError, match=r"Ray returned no result for 1 of 9 questions: \['q3'\]"):
        list(rerank(reader, examples(9), pool=ActorPool()))
