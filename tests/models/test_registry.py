"""Every causal LM that transformers registers: right, or refused with the reason that docs/readers.md lists."""

import re
from importlib import metadata

import numpy as np
import pytest
import torch
from helpers.registry import ASIDE, NAMES, PATTERNS, VOCABULARY, families, patterns, tiny_model
from helpers.support import LONG_FORMS, byte_tokenizer, one_by_one
from helpers.sweep import PAGE, README, line, page, sentence, verdict

from fastreader import Reader
from fastreader.core.tree import PrefixTree
from fastreader.errors import ContextOverflowError, UnsupportedModelError
from fastreader.models.attention_capture import CaptureRequest, capture_attention
from fastreader.models.machine import memory
from fastreader.moi.distill.student import Student

LISTED = {match[1]: match[0] for match in re.finditer(r"(?m)^\| `([^`]+)` \|.*$", PAGE.read_text(encoding="utf-8"))}
VERSION = re.search(r"families of transformers ([\d.]+) run", PAGE.read_text(encoding="utf-8"))[1]
# Asides that are built in a moment; the others need files, or cannot be small.
QUICK_ASIDES = [
    *("bert", "big_bird", "electra", "rembert", "roberta", "roformer", "xlm", "xlnet", "git", "whisper", "plbart"),
]


def built_here(family):
    if family not in NAMES:
        pytest.skip(f"transformers {metadata.version('transformers')} has no {family}")
    if family not in LISTED and family not in ASIDE:
        try:
            tiny_model(family, patterns(family)[0])
        except Exception as error:  # of many types, from its own code
            pytest.skip(f"{family} is new, and does not build with the values of tests/helpers/registry.py: {error!r}")
    return patterns(family)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", sorted({*LISTED, *families()} - set(ASIDE)))
@pytest.mark.long(keep=25)
def test_each_family_is_right_or_refused_as_listed(family):
    """The first pattern of layers, and in long forms all of them, with the page's row.

    In another version of transformers than the page's, a family may also run, or be refused for another reason.
    """
    every = built_here(family)
    verdicts = [verdict(family, changes) for changes in (every if LONG_FORMS else every[:1])]
    for found in verdicts:
        assert found.right or found.refused, found
        assert found.matters > 1e-3, "the order of the text does not matter, so nothing is tested"
    if metadata.version("transformers") != VERSION:
        return
    if len(verdicts) == len(every):
        assert LISTED[family] == line(family, verdicts), "run tests/helpers/sweep.py, which writes the page"
    else:
        listed = LISTED[family].split(" | ")[2]
        assert listed.startswith("right in") or listed == ("rejected" if verdicts[0].refused else "right")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", QUICK_ASIDES)
@pytest.mark.long(keep=4)
def test_no_family_aside_is_wrong(family):
    for changes in built_here(family):
        found = verdict(family, changes)
        assert found.right or found.refused, found


def test_the_page_and_the_readme_are_as_written():
    rows = {family: row for family, row in LISTED.items() if family not in ASIDE}
    if metadata.version("transformers") == VERSION:
        assert set(rows) == set(families()) - set(ASIDE)
        assert page(rows) in PAGE.read_text(encoding="utf-8")
        assert sentence(rows) in README.read_text(encoding="utf-8")
        assert set(ASIDE) | set(PATTERNS) <= set(families())
    right = sum(row.split(" | ")[2].startswith("right") for row in rows.values())
    assert right >= 0.85 * len(rows)


def test_texts_longer_than_an_index_covers_raise():
    model = tiny_model("deepseek_v32", {"index_topk": 30})
    reader = Reader.load((model, byte_tokenizer()), device="cpu", precision="exact")
    rng = np.random.default_rng(0)
    fits, longer = ((rng.integers(0, VOCABULARY, n).tolist(), [5]) for n in (30, 31))
    np.testing.assert_allclose(reader.score([fits]).token_logprobs[0], one_by_one(model, [fits])[0], atol=1e-5)
    with pytest.raises(
        ContextOverflowError, match=r"the context of .* is 30; beyond it, its attention reads only keys"
    ):
        reader.score([longer])
    ((text,),) = reader.generate([fits[0][:-2]], max_new_tokens=10)
    assert len(text.token_ids) == 3


def test_longer_windows_of_gpt_neo_pass_the_check():
    """They are part of a mask in each module, which the check cannot shorten."""
    model = tiny_model("gpt_neo", {"attention_types": [[["global", "local", "local"], 1]], "window_size": 30})
    rng = np.random.default_rng(0)
    sequences = [(rng.integers(0, VOCABULARY, n).tolist(), [5, 6]) for n in (29, 30, 31, 60)]
    reader = Reader.load((model, byte_tokenizer()), device="cpu", precision="exact")
    assert reader.local_model.model.windows == [None, 30, 30]
    for got, want in zip(reader.score(sequences).token_logprobs, one_by_one(model, sequences), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize(
    "family",
    ["stablelm", "gptj", "xglm", "falcon", "gemma3n_text", "diffllama", "modernbert-decoder", "llama4_text"],
)
@pytest.mark.parametrize("precision", ["fast", "high"])
@pytest.mark.long(keep=5)
def test_precisions_of_families_that_attend_in_other_ways(family, precision):
    stored = tiny_model(family, PATTERNS.get(family, [{}])[0]).bfloat16()
    wide = tiny_model(family, PATTERNS.get(family, [{}])[0])
    wide.load_state_dict(stored.state_dict())
    sequence = (np.random.default_rng(0).integers(0, VOCABULARY, 30).tolist(), [5, 6, 7])
    truth, own = one_by_one(wide, [sequence])[0], one_by_one(stored, [sequence])[0]
    got = Reader.load((stored, byte_tokenizer()), device="cpu", precision=precision).score([sequence]).token_logprobs[0]
    bound = 5e-3 if precision == "high" else max(0.05, 2 * np.abs(own - truth).max())
    assert np.abs(got - truth).max() < bound


def test_two_readers_of_a_family_that_holds_its_pass_do_not_mix():
    """The pass hangs on the modules of a private copy, so it is gone afterwards and another copy sees nothing."""
    model = tiny_model("stablelm", {})
    readers = [Reader.load((model, byte_tokenizer()), device="cpu", precision="exact") for _ in range(2)]
    sequence = ([5, 6, 7, 8], [9])
    scores = [reader.score([sequence]).logprob[0] for reader in readers]
    assert scores[0] == scores[1]
    for reader in readers:
        held = [module for module in reader.local_model.model.model.modules() if "fastreader_pass" in module.__dict__]
        assert held == []
    assert not any("fastreader_pass" in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("family", ["diffllama", "mllama", "qwen3_next"])
def test_attention_of_layers_that_do_not_attend_once_is_not_captured(family):
    reader = Reader.load((tiny_model(family, patterns(family)[0]), byte_tokenizer()), device="cpu", precision="exact")
    tree = PrefixTree.build([([5, 6, 7, 8], [])])
    with pytest.raises(UnsupportedModelError, match=r"expected an attention call of each of 3 layers, got [126]"):
        capture_attention(reader.local_model.model, tree, [CaptureRequest([5, 6, 7], [8], [(0, 2)])])


@pytest.mark.parametrize("family", ["gptj", "bloom", "deepseek_v32", "modernbert-decoder", "mllama", "mamba2"])
def test_families_that_run_in_a_changed_copy_are_not_distilled(family):
    with pytest.raises(UnsupportedModelError, match="packed trees run only in a changed copy of the model"):
        Student(tiny_model(family, patterns(family)[0]), byte_tokenizer(), family)


def test_keys_of_layers_that_differ_are_counted():
    model = tiny_model("gemma4_text", PATTERNS["gemma4_text"][1])
    config = model.config
    sizes = [2 * (1 * 32 if kind == "full_attention" else 2 * 16) for kind in config.layer_types]
    assert memory.key_value_bytes(config, torch.float32) == 4 * sum(sizes)
    assert memory.bytes_per_token(config, torch.float32, "own") > 0


def test_a_mask_that_only_some_texts_reach_is_refused():
    with pytest.raises(UnsupportedModelError, match="a window of 7 tokens, its attention call one of None"):
        Reader.load((tiny_model("phimoe", {"sliding_window": 7}), byte_tokenizer()), device="cpu")
