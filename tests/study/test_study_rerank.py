"""Methods of a study that rank by another model: relevance models, other readers, and names that do not load."""

import dataclasses
import json

import pytest
import transformers
from helpers.rerankers import ONE_TURN, classifier, logit_score
from helpers.support import CHAT_TEMPLATE, byte_tokenizer, tiny_llama

from fastreader import Reader, load_examples, rerank
from fastreader.data.answer_cache import Cache
from fastreader.errors import InputError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from fastreader.integrations.ray.study import _StudyTask
from fastreader.moi.baselines import METHODS
from fastreader.study import RunFolder, run_study
from fastreader.study.cached_reader import CachedReader, Meter
from fastreader.study.cells import GroupDone
from fastreader.study.registry import check
from studies import rows_of, run, study_of, without_seconds


def exact(folder):
    return Reader.load(str(folder), dtype="float32", precision="exact", check="off")


@pytest.fixture(scope="module")
def relevance(tmp_path_factory):
    _, folder = logit_score(tmp_path_factory.mktemp("relevance"), "Qwen3")
    return exact(folder)


@pytest.fixture(scope="module")
def other():
    return Reader.load((tiny_llama(7), byte_tokenizer(chat=True)), device="cpu", precision="exact")


class Loads:
    """Readers by name, with the names in the order in which they were loaded."""

    def __init__(self, **readers):
        self.readers, self.names = readers, []

    def __call__(self, name):
        self.names.append(name)
        return self.readers[name]


def ranked_by(model, **options):
    return {"method": "rerank", "name": model, "model": model, "max_new_tokens": 3, **options}


def by_method(folder):
    return {(row["method"], row["question_id"]): row for row in rows_of(folder).values()}


def test_a_relevance_model_ranks_and_the_studys_reader_answers(tmp_path, tiny_reader, relevance):
    asked = "Find the shorter passage."
    methods = [
        {"method": "base", "max_new_tokens": 3},
        ranked_by("relevance"),
        {**ranked_by("relevance"), "method": "rerank:relevance", "name": "asked", "instruction": asked, "top_n": 2},
    ]
    study, loads = study_of(tmp_path, methods, batch_size=2), Loads(scripted=tiny_reader, relevance=relevance)
    done = run_study(study, tmp_path / "run", load=loads, progress=False)
    assert (done.rows, done.failed, loads.names) == (15, 0, ["scripted", "relevance"])
    rows = by_method(tmp_path / "run")
    for example in load_examples(study.data):
        for method, options in (("relevance", {}), ("asked", {"instruction": asked, "top_n": 2})):
            ranking = rerank(relevance, example, **options)
            row = rows[method, example.id]
            assert row["trace"]["order"] == ranking.indices
            assert row["trace"]["order_scores"] == pytest.approx([r.relevance for r in ranking], abs=1e-6)
            answering = row["tokens"]["total_tokens"] - ranking.stats.total_tokens
            assert 0 < answering <= rows["base", example.id]["tokens"]["total_tokens"]
    costs = RunFolder(tmp_path / "run").read_json("costs.json")
    assert costs["relevance"]["total_tokens"] > 0 and costs["relevance"]["new_tokens"] == 0
    again = Loads(scripted=tiny_reader, relevance=relevance)
    assert run_study(study, tmp_path / "run", load=again, resume=True, progress=False).fresh == 0
    assert again.names == []


def test_what_a_relevance_model_scored_is_not_scored_again(tmp_path, relevance, monkeypatch):
    pairs = [("Where?", "In Cairo."), ("Where?", "Nowhere at all."), ("Who?", "In Cairo.")]
    with Cache(tmp_path / "cache") as cache:
        reader = CachedReader(relevance, cache)
        assert reader.is_reranker
        first = reader.relevance_scores(pairs[:2])
        asked = []
        original = type(relevance).relevance_scores
        monkeypatch.setattr(
            type(relevance),
            "relevance_scores",
            lambda self, given, **options: asked.append(list(given)) or original(self, given, **options),
        )
        second = reader.relevance_scores(pairs)
        assert asked == [[list(pairs[2])]]
        reader.relevance_scores(pairs[:1], instruction="Judge.")
        assert len(asked) == 2
    truth = relevance.relevance_scores(pairs)
    assert second.logits == pytest.approx(truth.logits, abs=1e-6) and second.prompts == truth.prompts
    assert second.logits[:2].tolist() == first.logits.tolist()
    assert (second.stats.total_tokens, second.stats.computed_tokens) == (
        truth.stats.total_tokens,
        truth.stats.computed_tokens,
    )


def test_readers_named_by_methods_find_the_order(tmp_path, tiny_reader, other):
    methods = [
        {"method": f"order:{name}", "name": name, "model": "other", "max_new_tokens": 2} for name in ("qg", "rankgpt")
    ]
    methods += [{**ranked_by("other"), "name": "asked", "method": "rerank:yes_no", "instruction": "Judge."}]
    study, loads = study_of(tmp_path, methods, count=2), Loads(scripted=tiny_reader, other=other)
    assert run_study(study, tmp_path / "run", load=loads, progress=False).failed == 0
    assert loads.names == ["scripted", "other"]
    rows, different = by_method(tmp_path / "run"), 0
    for example in load_examples(study.data):
        found = [METHODS["qg"](reader, example.question, example.passages) for reader in (other, tiny_reader)]
        assert rows["qg", example.id]["trace"]["order"] == found[0].order
        assert rows["qg", example.id]["trace"]["order_scores"] == pytest.approx(found[0].scores, abs=1e-5)
        different += found[0].scores == pytest.approx(found[1].scores, abs=1e-3)
        listed = METHODS["rankgpt"](other, example.question, example.passages)
        assert rows["rankgpt", example.id]["trace"]["order"] == listed.order
        assert rows["rankgpt", example.id]["trace"]["details"] == listed.details
        ranking = rerank(other, example, method="yes_no", instruction="Judge.")
        assert rows["asked", example.id]["trace"]["order"] == ranking.indices
    assert different == 0


def test_a_model_that_is_a_reader_of_the_study_is_loaded_once(tmp_path, tiny_reader, other):
    methods = [{"method": "order:qg", "model": "other", "max_new_tokens": 2}]
    study = study_of(tmp_path, methods, count=3, readers=["scripted", "other"], batch_size=1)
    loads = Loads(scripted=tiny_reader, other=other)
    assert run_study(study, tmp_path / "run", load=loads, progress=False).failed == 0
    assert loads.names == ["scripted", "other"]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"method": "order:random", "model": "m"}, "'order:random': model: expected none, since no model finds"),
        ({"method": "order:oracle", "model": "m"}, "'order:oracle': model: expected none"),
        ({"method": "order:rankgpt", "model": 5}, "'order:rankgpt': model: expected text that is not empty, got 5"),
        ({"method": "rerank", "model": ""}, "'rerank': model: expected text that is not empty"),
        ({"method": "rerank", "instruction": "Judge."}, "'rerank': instruction: expected none without a model"),
        ({"method": "rerank", "top_n": 0}, "'rerank': top_n: expected an integer of at least 1"),
        (
            {"method": "order:cross-encoder", "model": "/none"},
            "'order:cross-encoder': model: there is no folder /none; expected a folder or a hub id of a cross-encoder",
        ),
        ({"method": "base", "model": "m"}, "'base': expected no keys besides max_new_tokens, passages, got 'model'"),
    ],
)
def test_options_that_do_not_fit(tmp_path, method, message):
    with pytest.raises(InputError, match=message):
        check(study_of(tmp_path, [method]))


@pytest.mark.parametrize(
    ("method", "reader", "message"),
    [
        ({"method": "rerank:relevance"}, "scripted", "'rerank:relevance': model: expected a relevance model"),
        ({"method": "rerank:relevance", "model": "plain"}, "scripted", "'rerank:relevance': model: expected a relev"),
        ({"method": "rerank", "model": "plain", "instruction": "x"}, "scripted", "since .* ranks by query likelihood"),
    ],
)
def test_models_that_cannot_rank_so_stop_the_study(tmp_path, tiny_reader, other, method, reader, message):
    loads = Loads(scripted=tiny_reader, plain=other)
    with pytest.raises(InputError, match=message):
        run_study(study_of(tmp_path, [method]), tmp_path / "run", load=loads, progress=False)
    assert RunFolder(tmp_path / "run").rows() == []


def test_names_that_cannot_be_loaded_are_refused_before_the_study_begins(tmp_path, model):
    encoder = tmp_path / "encoder"
    config = transformers.BertConfig(
        vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertForSequenceClassification(config).save_pretrained(encoder)
    byte_tokenizer().save_pretrained(encoder)
    (tmp_path / "empty").mkdir()
    _, labelled = logit_score(tmp_path / "labelled", "Qwen3")
    (labelled / "1_LogitScore" / "config.json").write_text('{"true_token_id": 99999, "false_token_id": null}')
    _, without = logit_score(tmp_path / "without", "Qwen3")
    (without / "model.safetensors").unlink()
    for name, error, message in (
        ("./none", ModelNotFoundError, r"\./none: no such file or folder"),
        (str(tmp_path / "empty"), ModelNotFoundError, "lacks a config.json"),
        (str(without), ModelNotFoundError, "lacks its weights"),
        (str(labelled), ModelFileError, "true_token_id: expected a token id below"),
        (str(encoder), UnsupportedModelError, "BertForSequenceClassification: expected a text model"),
    ):
        methods = [{"method": "base"}, {"method": "rerank", "name": "ranked", "model": name}]
        study = study_of(tmp_path, methods, readers=[model])
        with pytest.raises(error, match=f"method 'ranked': model: .*{message}"):
            run_study(study, tmp_path / "run", progress=False)
        assert not (tmp_path / "run").exists()


def test_a_changed_model_is_another_study(tmp_path, model):
    _, folder = classifier(tmp_path, "Qwen3")
    methods = [{"method": "rerank", "model": str(folder), "max_new_tokens": 2}]
    study = study_of(tmp_path, methods, count=1, readers=[model], precision="exact")
    assert run_study(study, tmp_path / "run", progress=False).failed == 0
    kept = json.loads((tmp_path / "run" / "files.json").read_text())
    assert set(kept) == {"rerank: model", f"reader {model}"}
    classifier(tmp_path, "Qwen3", seed=1)
    with pytest.raises(InputError, match=r"another study: rerank: model: .* has changed"):
        run_study(study, tmp_path / "run", resume=True, progress=False)


def test_the_studys_own_relevance_model_scores_only_by_name(tmp_path):
    asked = "{% if messages | selectattr('role', 'eq', 'query') | list %}"
    both = asked + ONE_TURN + "{% else %}" + CHAT_TEMPLATE + "{% endif %}"
    _, folder = logit_score(tmp_path, "Qwen3", template=both)
    relevance = exact(folder)
    methods = [{"method": name, "max_new_tokens": 2} for name in ("rerank", "rerank:relevance")]
    study = study_of(tmp_path, methods, count=2)
    assert run(study, tmp_path / "run", relevance).failed == 0
    rows = by_method(tmp_path / "run")
    for example in load_examples(study.data):
        for name, way in (("rerank", "query_likelihood"), ("rerank:relevance", "relevance")):
            ranking = rerank(relevance, example, method=way)
            assert rows[name, example.id]["trace"]["order"] == ranking.indices
            scores = [result.relevance for result in ranking]
            assert rows[name, example.id]["trace"]["order_scores"] == pytest.approx(scores, abs=1e-6)


def test_actors_load_the_models_that_methods_name(tmp_path, model):
    _, folder = classifier(tmp_path, "Qwen3")
    methods = [{"method": "rerank", "model": str(folder), "max_new_tokens": 2}]
    study = study_of(tmp_path, methods, count=3, readers=[model], precision="exact", batch_size=2)
    run_study(study, tmp_path / "here", progress=False)

    def elsewhere(name, study, examples, groups):
        task = _StudyTask(name, study, examples)
        items = [{"id": str(i), **dataclasses.asdict(group)} for i, group in enumerate(groups)]
        for _, values in task(Reader.load(name, precision="exact"), items):
            sent = json.loads(json.dumps(values))
            readers = {key: (about, Meter(**cost)) for key, (about, cost) in sent["readers"].items()}
            yield GroupDone(readers, [tuple(row) for row in sent["rows"]])

    run_study(study, tmp_path / "there", elsewhere=elsewhere, progress=False)
    here, there = (RunFolder(tmp_path / name) for name in ("here", "there"))
    assert without_seconds(rows_of(here.path)) == without_seconds(rows_of(there.path))
    for counted in ("total_tokens", "calls"):
        costs = [{name: cost[counted] for name, cost in run.read_json("costs.json").items()} for run in (here, there)]
        assert costs[0] == costs[1] and set(costs[0]) == {model, str(folder)}
    assert here.read_json("readers.json") == there.read_json("readers.json")
