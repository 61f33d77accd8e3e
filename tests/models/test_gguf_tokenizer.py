import copy
import json
import lzma
from pathlib import Path

import pytest

from fastreader.models.gguf.splits import SPLITS
from fastreader.models.gguf.tokenizer import tokenizer_of

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
