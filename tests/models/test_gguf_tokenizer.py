import copy
import json
import lzma
from pathlib import Path

import pytest

from fastreader.models.gguf.splits import SPLITS
from fastreader.models.gguf.tokenizer import ends_of, tokenizer_of
from fastreader.models.gguf.vocabulary import CONTROL, read_vocabulary

# Written by tools/llamacpp_ids.py with llama.cpp's own tokenizer.
with lzma.open(Path(__file__).parent / "llamacpp_ids.json.xz", "rt", encoding="utf-8") as stream:
    LLAMACPP = json.load(stream)
TEXTS, CASES = LLAMACPP["texts"], LLAMACPP["cases"]


def metadata_of(name, **changed):
    case = CASES[name]
    changed = {f"tokenizer.ggml.{key}": value for key, value in changed.items()}
    return LLAMACPP["vocabularies"][case["vocabulary"]] | case["changed"] | changed


def others(tokenizer, ids, plain=False):
    """Return the texts whose token ids are not llama.cpp's."""
    backend = copy.deepcopy(tokenizer._tokenizer)
    backend.encode_special_tokens = plain
    found = [encoding.ids for encoding in backend.encode_batch(TEXTS, add_special_tokens=False)]
    return [(text, a, b) for text, a, b in zip(TEXTS, found, ids, strict=True) if a != b]


def test_every_name_of_a_split_is_compared_with_llama_cpp():
    assert len(TEXTS) >= 300 and SPLITS.keys() <= CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_token_ids_are_those_of_llama_cpp(name):
    ids = LLAMACPP["ids"][CASES[name]["ids"]]
    tokenizer = tokenizer_of(metadata_of(name), "made.gguf")
    assert others(tokenizer, ids["trusted"]) == []
    assert others(tokenizer, ids["plain"], plain=True) == []


def small(**changed):
    """A byte-level vocabulary with ends of turns that only some files name."""
    tokens = [*"abc", "<s>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<stop>", "<halt>", "</s>"]
    values = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": [], "token_type": [1] * 3 + [3] * 7}
    values |= {"bos_token_id": 3, "eos_token_id": 4, **changed}
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


@pytest.mark.parametrize(
    ("changed", "ends"),
    [
        ({}, {4, 5, 6, 9}),  # llama.cpp knows some by their texts
        ({"eos_token_id": 7}, {4, 5, 6, 7, 9}),
        ({"eot_token_id": 7}, {4, 5, 6, 7, 9}),
        ({"eom_token_id": 8}, {4, 5, 6, 8, 9}),
        ({"eot_token_id": 7, "eom_token_id": 8}, {4, 5, 6, 7, 8, 9}),
        ({"eos_token_ids": [7, 8]}, {4, 5, 6, 7, 8, 9}),
        ({"token_type": [1] * 3 + [3] * 6 + [1]}, {4, 5, 6}),  # text that is struck through
    ],
)
def test_every_end_that_a_file_names_ends_a_text(changed, ends):
    assert set(ends_of(small(**changed), "made.gguf")) == ends


# What llama.cpp does with these, by its prebuilt release: isEogToken, and whether the text of each is one token.
FILL_IN = ["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]


@pytest.mark.parametrize("kind", [1, 4])
def test_tokens_around_code_that_is_filled_in_are_control_tokens(kind):
    found = small()
    found["tokenizer.ggml.tokens"] = [*found["tokenizer.ggml.tokens"], *FILL_IN]
    found["tokenizer.ggml.token_type"] = [*found["tokenizer.ggml.token_type"], *[kind] * len(FILL_IN)]
    assert set(ends_of(found, "made.gguf")) == {4, 5, 6, 9, 10, 11, 12}
    assert read_vocabulary(found, "made.gguf").types[10:] == [CONTROL] * len(FILL_IN)
    named = {**found, "tokenizer.ggml.fim_pad_token_id": 7, "tokenizer.ggml.prefix_token_id": 8}
    assert set(ends_of(named, "made.gguf")) == {4, 5, 6, 7, 9, 11, 12}
    assert read_vocabulary(named, "made.gguf").types[10:14] == [kind, CONTROL, CONTROL, kind]


def test_equal_scores_are_said(caplog):
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab"]
    values = {"model": "llama", "tokens": tokens, "token_type": [2, 3, 3, 1, 1, 1], "scores": [-1000.0] * 6}
    tokenizer_of({f"tokenizer.ggml.{key}": value for key, value in values.items()}, "made.gguf")
    assert "all tokens have the same score" in caplog.text


# By llama.cpp's loader: a beginning precedes a text after these splits, unless the file says otherwise.
BEGINS = {"llama-bpe": True, "llama3": True, "llama-v3": True, "falcon3": True, "pixtral": True, "tekken": True}
BEGINS |= dict.fromkeys(("gpt-2", "qwen2", "smollm", "starcoder", "command-r", "olmo", "mpt", "stablelm2"), False)


@pytest.mark.parametrize("stated", [None, True, False])
@pytest.mark.parametrize("pre", sorted(BEGINS.keys() & SPLITS.keys()))
def test_a_beginning_of_text_is_added_as_llama_cpp_does(pre, stated):
    for end in (None, False, True):
        tokenizer = tokenizer_of(small(pre=pre, add_bos_token=stated, add_eos_token=end), "made.gguf")
        begins = BEGINS[pre] if stated is None else stated
        assert tokenizer("ab")["input_ids"] == [3] * begins + [0, 1] + [4] * bool(end)


def test_most_splits_of_that_table_are_known():
    assert len(BEGINS.keys() & SPLITS.keys()) >= 10
