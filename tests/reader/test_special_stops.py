"""Stop strings that hold special tokens, which the text of a generation does not show."""

from __future__ import annotations

import itertools

import pytest
import torch
from helpers.support import byte_tokenizer, tiny_llama

from fastreader import Reader, ReaderPool
from fastreader.core.options import StepOptions
from fastreader.reader.generation.text_so_far import DecodedText, Stops, StopStrings
from fastreader.reader.prompts.encoder import TextEncoder

END, USER, ASSISTANT = 1, 2, 3


def tokenizer_with_words():
    from tokenizers import AddedToken

    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("</think>", special=False)])
    return tokenizer


TOKENIZER = tokenizer_with_words()
THINK = TOKENIZER.convert_tokens_to_ids("</think>")
CHAIN = [
    *TOKENIZER("abc", add_special_tokens=False)["input_ids"],
    USER,
    *TOKENIZER("d é")["input_ids"],
    ASSISTANT,
    THINK,
]


@pytest.fixture(scope="module")
def reader():
    """A reader that writes CHAIN, one token after the other."""
    torch.manual_seed(1)
    model = tiny_llama(vocab_size=262, eos_token_id=None)
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        embedding = torch.nn.functional.normalize(torch.randn(262, 64))
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        head = torch.zeros(262, 64)
        for token, following in itertools.pairwise(CHAIN):
            head[following] += embedding[token]
        model.model.embed_tokens.weight.copy_(embedding)
        model.lm_head.weight.copy_(20 * head)
    return Reader.load((model, TOKENIZER), precision="exact", check="off")


@pytest.mark.parametrize(
    ("stop", "text", "count", "reason"),
    [
        (["<|user|>"], "bc", 2, "stop"),
        (["c<|user|>"], "b", 3, "stop"),
        (["<|user|>d"], "bc", 4, "stop"),
        (["<|user|>d "], "bc", 5, "stop"),
        (["é<|assistant|>", "zz"], "bcd ", 8, "stop"),
        (["<|assistant|></think>", "nothing"], "bcd é", 9, "stop"),
        (["<|assistant|>", "cd"], "b", 4, "stop"),
        (["</think>"], "bcd é", 9, "stop"),
        (["<|end|>", "c d"], "bcd é</think>", 9, "length"),
        (["cd"], "b", 4, "stop"),
    ],
)
def test_a_text_ends_at_a_special_token_of_a_stop_string(reader, stop, text, count, reason):
    (found,), *_ = reader.generate([CHAIN[:1]], max_new_tokens=9, stop=stop, token_logprobs=True)
    assert (found.text, found.finish_reason) == (text, reason)
    assert found.token_ids == CHAIN[1 : 1 + count]
    assert len(found.token_logprobs) == count


def test_a_special_stop_string_is_its_stop_token(reader):
    by_id = reader.generate([CHAIN[:1]], max_new_tokens=9, stop_token_ids=[ASSISTANT])[0]
    assert reader.generate([CHAIN[:1]], max_new_tokens=9, stop=["<|assistant|>"])[0] == by_id


def test_written_out_letter_by_letter_it_is_a_stop_string_too():
    encoder = TextEncoder(TOKENIZER)
    tokens = encoder.piece("ab<|user|>cd")
    stops = Stops(encoder, ["<|user|>"])
    watches = [StopStrings(*sought) for sought in stops.sought]
    found = [n for n in range(1, len(tokens) + 1) if any(w.found(tokens[:n]) for w in watches)]
    assert found[0] == len(encoder.piece("ab<|user|>"))
    text = DecodedText(prompt=[5], room=50, draw=None, tokens=tokens, finish_reason="length")
    assert stops.generation(text, StepOptions()).text == "ab"


@pytest.mark.parametrize("stop", [["<|user|>"], ["cd"]])
def test_a_pool_keeps_stop_strings_of_an_iterator(reader, stop):
    with_list = reader.generate([CHAIN[:1]] * 3, max_new_tokens=9, stop=stop)
    pool = ReaderPool([reader])
    got = pool.generate([CHAIN[:1]] * 3, max_new_tokens=9, stop=iter(stop), stop_token_ids=iter([THINK]))
    assert list(got) == list(with_list)
