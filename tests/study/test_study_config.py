import json

import pytest

from fastreader.errors import InputError
from fastreader.study import Study
from fastreader.study.registry import FAMILIES, check, names


def write(folder, text, name="study.toml", data=True):
    if data:
        (folder / "q.jsonl").write_text(json.dumps({"question": "Q?", "ctxs": [{"text": "t"}]}) + "\n")
    file = folder / name
    file.write_text(text)
    return file


def test_toml_and_yaml_give_the_same_study(tmp_path):
    toml = write(
        tmp_path, 'data = "q.jsonl"\nreader = "r"\nseed = 3\nmethods = ["sure", {method = "sure", name = "k3", k = 3}]'
    )
    yaml = write(
        tmp_path, "data: q.jsonl\nreader: r\nseed: 3\nmethods: [sure, {method: sure, name: k3, k: 3}]", "study.yaml"
    )
    study = Study.load(toml)
    assert study == Study.load(yaml)
    assert (study.readers, study.seeds, study.data) == (("r",), (3,), str(tmp_path / "q.jsonl"))
    assert [m.label for m in study.methods] == ["sure", "k3"] and study.methods[1].options == {"k": 3}
    assert Study.of(study.to_dict()) == study  # what the run folder keeps


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('methods = ["moy"]', r"unknown method 'moy'; did you mean 'moi'\? There are: base,"),
        ('methods = ["sure:rankin"]', "expected one of sure, base"),
        ('methods = ["order:best"]', "method: expected one of order:retriever, .*, got 'order:best'"),
        ('methods = ["noise"]', "layout, such as noise:gold .* expected text that is not empty, got ''"),
        ('methods = ["noise:random:1:mid"]', "expected other passages besides the gold one"),
        ('methods = ["eor:loudest"]', "method: expected one of eor, eor:mean, .*, got 'eor:loudest'"),
        ('methods = ["eor"]\n[eor]\nsimilarities = ["feeling"]', "feeling"),
        ('methods = ["eor"]\n[eor]\nsimilarities = ["nli:/none"]', "nli:/none: there is no folder /none"),
        ('methods = ["base", "moi", "base"]', "two methods are named 'base'"),
        ('methods = [{method = "base", name = "x"}, {method = "moi", name = "x"}]', "two methods are named 'x'"),
        (
            'methods = [{method = "base", temperature = 1}]',
            "method 'base': expected no keys besides max_new_tokens, passages, got 'temperature'",
        ),
        ('methods = ["zzzzz"]', r"unknown method 'zzzzz'\. There are: base,"),
        (
            'methods = [{method = "base", passages = "all"}]',
            "method 'base': passages: expected an integer of at least 1",
        ),
        (
            'methods = [{method = "noise:gold", max_new_tokens = 0}]',
            "'noise:gold': max_new_tokens: .* of at least 1, got 0",
        ),
        ('methods = [{method = "moi", max_passages = true}]', "'moi': max_passages: .* of at least 1, got True"),
        ('methods = [{method = "eor", retrievers = "R@1"}]', "'eor': retrievers: expected a list of texts, got 'R@1'"),
        ('methods = ["moi"]\n[moi]\nbias = 5', "bias: expected a file of a calibration, got 5"),
        (
            'methods = ["moi"]\n[moi.stopping]\nbest = 1',
            "stopping: expected no keys besides p_best, same_order, most, got 'best'",
        ),
        (
            'methods = ["moi"]\n[moi.stopping]\nmost = "9"',
            "Stopping.most: expected an integer or None, got '9'",
        ),
        ('methods = ["moi"]\n[moi.stopping]\np_best = "9"', "Stopping.p_best: expected a number or None, got '9'"),
        ('methods = ["moi"]\nseeds = [0, -1]', "seeds"),
        ('methods = [{method = "sure", q = 1}]', r"settings: expected .*, got \['q'\]"),
        ("methods = []", "methods"),
        ('methods = ["base"]\nmetods = 1', "metods: unknown key"),
        ('methods = ["base"]\n[noise]\nrandum = "words"', "noise.randum: unknown key"),
        ('methods = ["base"]\nlimit = 0', "limit"),
        ('methods = ["base"]\nbaseline = "moi"', "baseline 'moi' is not one of the methods base"),
        ('methods = ["base"]\nprimary = "base"', "cannot be compared with itself"),
        ('methods = ["base"]\nseeds = [1, 1]', "seeds must be different"),
        ('methods = ["base"]\nseed = 1\nseeds = [2]', "seed and seeds are synonyms"),
        ('methods = ["base"]\nmetric = "bleu"', "metric"),
        ('methods = ["base"]\n[noise]\nrandom = "pool.jsonl"', r"noise.random: .*pool.jsonl: no such file"),
        (
            'methods = ["eor"]\n[eor]\ntexts = "longer"',
            r"eor\.texts: expected default, short or a \.toml or \.json file, got .*longer",
        ),
        ('methods = ["eor"]\n[eor.texts]\noops = "x"', "Texts: expected no keys besides .*answer_lead.*got 'oops'"),
        ('methods = [{method = "eor", texts = "t.json"}]', r"methods\.0\.texts: expected default, short"),
        ('methods = [{method = "eor", texts = 5}]', "found: expected a path or a dictionary, got 5"),
        ('methods = ["base"]\n[eor.sources]\nWiki = "w.jsonl"', "eor.sources.Wiki: .*no such file"),
        ('methods = ["base"]\ntemplate = "t.toml"', "template: .*no such file"),
    ],
)
def test_errors_name_the_place_of_an_invalid_value(tmp_path, line, message):
    with pytest.raises(InputError, match=message):
        check(Study.load(write(tmp_path, f'data = "q.jsonl"\n{line}')))


def test_unreadable_files(tmp_path):
    with pytest.raises(InputError, match=r"nothing.toml: cannot be read \(No such file"):
        Study.load(tmp_path / "nothing.toml")
    with pytest.raises(InputError, match=r"data: .*q.jsonl: no such file"):
        Study.load(write(tmp_path, 'data = "q.jsonl"\nmethods = ["base"]', data=False))
    with pytest.raises(InputError, match=r"study\.toml: not TOML"):
        Study.load(write(tmp_path, "data = "))
    with pytest.raises(InputError, match=r"s\.yaml: not YAML"):
        Study.load(write(tmp_path, "a: [", "s.yaml"))
    with pytest.raises(InputError, match=r"expected an object with keys and values, got \['a'\]"):
        Study.load(write(tmp_path, "- a", "s.yaml"))
    with pytest.raises(InputError, match=r"\.toml, \.yaml or \.json"):
        Study.load(write(tmp_path, "x", "s.txt"))


def test_a_flag_replaces_the_files_value(tmp_path):
    file = write(
        tmp_path, 'data = "none.jsonl"\nlimit = 5\nmethods = ["base", "moi"]\nprimary = "moi"\nbaseline = "base"'
    )
    study = Study.load(file, data=str(tmp_path / "q.jsonl"), methods=["sure"], limit=None)
    assert (study.primary, study.baseline) == (None, None)
    assert Study.load(file, data=study.data, methods=["moi", "sure"], primary="sure").primary == "sure"
    assert (study.data, study.limit, study.methods[0].label) == (str(tmp_path / "q.jsonl"), 5, "sure")


@pytest.mark.parametrize("words", [("reader", "seed"), ("readers", "seeds")])
def test_a_flag_replaces_the_files_value_by_either_name(tmp_path, words):
    file = write(tmp_path, 'data = "q.jsonl"\nmethods = ["base"]\nreader = "one"\nseeds = [1, 2]')
    study = Study.load(file, **dict(zip(words, ("two", 3), strict=True)))
    assert (study.readers, study.seeds) == (("two",), (3,))
    with pytest.raises(InputError, match=r"study\.toml: seed and seeds are synonyms"):
        Study.load(file, seed=1, seeds=[2])


def test_every_listed_name_is_made(tmp_path):
    placeholders = {"noise:KIND:N:POSITION": "noise:hard:2:mid", "noise:retrieved:K": "noise:retrieved:3"}
    placeholders["noise:retrieved:K+random:M"] = "noise:retrieved:3+random:fill"
    needs_more = {"order:cross-encoder", "order:cross-encoder-matched"}  # the option model
    listed = [placeholders.get(name, name) for name in names() if name not in needs_more]
    study = Study.of({"data": "q.jsonl", "methods": listed, "sure": {"shots": [["q", "a"]]}})
    check(study)
    assert len(study.methods) == len(listed) > 40
    assert {name.partition(":")[0] for name in listed} == set(FAMILIES)
    for name in needs_more:
        with pytest.raises(InputError, match=f"method '{name}': model: expected a cross-encoder, got None"):
            check(Study.of({"data": "q.jsonl", "methods": [name]}))
        check(Study.of({"data": "q.jsonl", "methods": [{"method": name, "model": "some/model"}]}))
