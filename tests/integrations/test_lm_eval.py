"""The harness's model `fastreader` compared with its HFLM in float32: log-likelihoods, rolling, texts, command line."""

import copy
import json
import os
import sys
import warnings

import huggingface_hub
import pytest
from helpers.support import QUESTIONS, byte_tokenizer, text_pairs, tiny_llama

from fastreader import Reader, load_examples
from fastreader.core.tree import PrefixTree
from fastreader.errors import InputError

pytest.importorskip("lm_eval", reason="needs the extra lm-eval")

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from fastreader.integrations.lm_eval import FastreaderLM, main

NATS = 1e-4


def instances(kind, *arguments):
    return [Instance(kind, {}, given, i) for i, given in enumerate(arguments)]


def harness(model, tokenizer, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, device="cpu", **options)


def both(model, tokenizer, **options):
    """Our model and the harness's, over the same weights and tokenizer."""
    reader = Reader.load((model, tokenizer), precision="exact")
    return FastreaderLM(reader, **options), harness(model, tokenizer, **options)


@pytest.fixture(scope="module", params=[False, True], ids=["no bos", "bos"])
def tiny(request):
    return both(tiny_llama(), byte_tokenizer(chat=True, bos=request.param), max_length=64)


@pytest.fixture(scope="module")
def packaged(packaged_reader, packaged_model):
    return both(packaged_model, packaged_reader.encoder.tokenizer)


def compare(models, pairs):
    got, want = (m.loglikelihood(instances("loglikelihood", *pairs), disable_tqdm=True) for m in models)
    assert [g[0] for g in got] == pytest.approx([w[0] for w in want], abs=NATS, rel=0)
    assert [g[1] for g in got] == [w[1] for w in want]
    return got


def test_pairs_of_the_packaged_model(packaged):
    """All 200 by `make test-integrations`. One text after the other takes the harness two minutes."""
    pairs = text_pairs()
    assert len(pairs) == 200
    if not os.environ.get("FASTREADER_REQUIRE_FRAMEWORKS"):  # three kinds of two passages, some greedy
        pairs = [pair for i, pair in enumerate(pairs) if i // 3 in (3, 23)]
    got = compare(packaged, pairs)
    assert any(greedy for _, greedy in got) and not all(greedy for _, greedy in got)


def test_rolling_of_the_packaged_model(packaged):
    """The harness sums float32 logarithms, which alone shifts a passage by 5e-4 nats: its float64 is the measure."""
    ours, single = packaged
    double = harness(copy.deepcopy(single.model).double(), single.tokenizer)
    texts = [(passage.text,) for example in load_examples(QUESTIONS)[:1] for passage in example.passages[:2]]
    got, want, rough = (
        m.loglikelihood_rolling(instances("", *texts, ("",)), disable_tqdm=True) for m in (ours, double, single)
    )
    assert got == pytest.approx(want, abs=NATS, rel=0) and got[-1] == 0
    for (text,), mine, theirs in zip(texts, got, rough, strict=False):
        assert mine == pytest.approx(theirs, abs=1e-5 * len(ours.tok_encode(text)), rel=0)


@pytest.mark.long
def test_texts_of_the_packaged_model(packaged):
    contexts = [f"Question: {example.question}\nAnswer:" for example in load_examples(QUESTIONS)[:3]]
    requests = [(context, {"until": ["\n", "Question:"], "max_gen_toks": 12}) for context in contexts]
    requests.append((contexts[0], {"until": [".", "!"], "max_gen_toks": 24, "do_sample": False}))
    got, want = (m.generate_until(instances("", *requests), disable_tqdm=True) for m in packaged)
    assert got == want and all(got)


def test_pairs_of_a_tiny_model(tiny):
    long = "x" * 80  # longer than max_length, so that its beginning is cut off
    pairs = [
        ("ab", "c"),
        ("ab", "cd"),
        ("ab  ", "cd"),
        ("", "<|bos|>de"),
        ("", "de"),
        (long, "y"),
        (long, "yz"),
        ("é", "ß"),
    ]
    compare(tiny, pairs)
    assert tiny[0].loglikelihood([], disable_tqdm=True) == []


def test_windows_of_a_tiny_model(tiny):
    texts = [("a" * n,) for n in (1, 2, 63, 64, 65, 128, 150)] + [("",), ("<|bos|>abc",)]
    got, want = (m.loglikelihood_rolling(instances("", *texts), disable_tqdm=True) for m in tiny)
    assert got == pytest.approx(want, abs=NATS, rel=0)


def test_texts_of_a_tiny_model(tiny):
    ours, theirs = tiny
    plain = ours.generate_until(instances("", ("ab", {"max_gen_toks": 20})), disable_tqdm=True)[0]
    assert len(plain) > 4
    requests = [
        (context, {"until": until, "max_gen_toks": 20})
        for context in ("ab", "q" * 80)
        for until in ([], [plain[2]], [plain[2:4], plain[1:3]], plain[3], ["<|assistant|>"], ["<|end|>", "\n"])
    ]
    got, want = (m.generate_until(instances("", *requests), disable_tqdm=True) for m in (ours, theirs))
    assert got == want
    assert len(set(got)) > 3


def test_a_special_token_ends_a_text(tiny):
    """A special token does not show in the decoded text, and ends it all the same."""
    ours = tiny[0]
    known = set(ours.tokenizer.all_special_ids) - {ours.eot_token_id}
    contexts = [chr(letter) * 2 for letter in range(ord("a"), ord("z"))]
    written = ours.reader.generate([ours.tok_encode(context) for context in contexts], max_new_tokens=40)
    texts = [generation.token_ids for (generation,) in written]
    context, tokens = next(pair for pair in zip(contexts, texts, strict=True) if known & set(pair[1]))
    place = next(i for i, token in enumerate(tokens) if token in known)
    until = [ours.tokenizer.decode(tokens[place : place + 1])]
    request = instances("", (context, {"until": until, "max_gen_toks": 40}))
    got, want = (m.generate_until(request, disable_tqdm=True) for m in tiny)
    assert got == want == [ours.tokenizer.decode(tokens[:place], skip_special_tokens=True)]


def test_samples_differ_and_repeat(tiny_reader):
    request = instances("", *[("ab", {"do_sample": True, "temperature": 1.0, "max_gen_toks": 8})] * 3)
    once = FastreaderLM(tiny_reader, seed=3).generate_until(request)
    assert len(set(once)) == 3 and once == FastreaderLM(tiny_reader, seed=3).generate_until(request)
    assert once != FastreaderLM(tiny_reader, seed=4).generate_until(request)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 4}, "num_beams: expected 1"),
        ({"repetition_penalty": 1.1}, "generation_kwargs: expected one of until"),
        ({"do_sample": True}, "temperature: expected above 0 with do_sample=True"),
        ({"max_gen_toks": 4096}, "max_gen_toks: expected less than max_length, 2048"),
    ],
)
def test_options_that_a_reader_lacks(tiny_reader, options, message):
    with pytest.raises(InputError, match=message):
        FastreaderLM(tiny_reader).generate_until(instances("", ("ab", options)))


def test_a_continuation_that_does_not_fit(tiny_reader):
    own = FastreaderLM(tiny_reader, max_length=8)
    with pytest.raises(InputError, match=r"requests\[0\]: continuation: 9 tokens leave no room for a prompt"):
        own.loglikelihood(instances("", ("a", "b" * 9)))
    with pytest.raises(InputError, match="max_length: expected at most 2048"):
        FastreaderLM(tiny_reader, max_length=4096)


def test_prefixes_are_shared_and_passes_bounded(tiny_reader, monkeypatch):
    trees: list[PrefixTree] = []
    plan = type(tiny_reader).plan

    def recorded(self, *arguments, **options):
        found = plan(self, *arguments, **options)
        trees.extend(found)
        return found

    monkeypatch.setattr(type(tiny_reader), "plan", recorded)
    pairs = [(f"{'a shared beginning ' * 20}{i}", f" answer {k}") for i in range(4) for k in range(3)]
    whole = FastreaderLM(tiny_reader).loglikelihood(instances("", *pairs), disable_tqdm=True)
    assert len(trees) == 1 and trees[0].stats.sharing_ratio > 5
    trees.clear()
    parts = FastreaderLM(tiny_reader, max_batch_tokens=405).loglikelihood(instances("", *pairs), disable_tqdm=True)
    assert len(trees) > 1 and max(len(tree) for tree in trees) <= 405
    assert [p[0] for p in parts] == pytest.approx([w[0] for w in whole], abs=1e-4)


def test_the_bar_is_the_harness_own(tiny_reader, capsys):
    own, request = FastreaderLM(tiny_reader), instances("", ("ab", "c"))
    own.loglikelihood(request, disable_tqdm=True)
    assert capsys.readouterr().err == ""
    own.loglikelihood(request)
    assert "Running loglikelihood requests" in capsys.readouterr().err


def test_a_chat_template(tiny):
    history = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    for prompt in (True, False):
        got, want = (m.apply_chat_template(history, add_generation_prompt=prompt) for m in tiny)
        assert got == want
    assert tiny[0].chat_template(True) == tiny[1].chat_template(True) and tiny[0].tokenizer_name is not None


TASK = """task: rivers
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
metric_list: [{{metric: acc}}]
"""


@pytest.mark.long
def test_the_command_line(model, tmp_path, monkeypatch, capsys):
    rows = [{"question": f"Which river {i}?", "choices": ["Nile", "Seine"], "label": i % 2} for i in range(3)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "rivers.yaml").write_text(TASK.format(data=tmp_path / "rows.jsonl"))
    options = ["--include_path", str(tmp_path), "--tasks", "rivers", "--output_path", str(tmp_path / "out")]
    arguments = ["--model", "fastreader", "--batch_size", "4", "--device", "cpu", *options]
    given = f"pretrained={model},dtype=float32,precision=exact"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(sys, "argv", sys.argv[:1])
    main([*arguments, "--model_args", given])
    assert "rivers" in capsys.readouterr().out
    (written,) = (tmp_path / "out").rglob("results_*.json")
    results = json.loads(written.read_text())
    assert 0 <= results["results"]["rivers"]["acc,none"] <= 1
    assert results["config"]["fastreader"]["precision"] == "exact"
