import contextlib
import copy
import threading

import numpy as np
import pytest
import torch
from helpers.support import byte_tokenizer, one_by_one, random_sequences, tiny_llama

from fastreader import Reader
from fastreader.errors import (
    ContextOverflowError,
    FastreaderError,
    InputError,
    ModelFileError,
    ModelNotFoundError,
    NumericsError,
    OutOfBudgetError,
)
from fastreader.models.machine import memory
from fastreader.models.rewriting.fused import JoinedLinear, UpcastLinear

RNG = np.random.default_rng(0)
SEQUENCES = random_sequences(RNG, 261, count=30)


def test_a_borrowed_model_is_left_as_found():
    model, tokenizer = tiny_llama(), byte_tokenizer()
    model.train()
    before = copy.deepcopy(model)
    Reader.load((model, tokenizer)).score(SEQUENCES)
    assert model.training
    assert model.config.to_dict() == before.config.to_dict()
    assert model.config._attn_implementation == before.config._attn_implementation
    assert model.state_dict().keys() == before.state_dict().keys()
    for (name, ours), theirs in zip(model.named_buffers(), before.buffers(), strict=True):
        assert torch.equal(ours, theirs), name
    ids = torch.arange(20)[None]
    model.eval(), before.eval()
    assert torch.equal(model(ids).logits, before(ids).logits)


def test_weights_of_a_borrowed_model_are_not_copied():
    """With PyTorch's products no kernel wants another layout: the matrices in use are the caller's own memory."""
    model = tiny_llama()
    reader = Reader.load((model, byte_tokenizer()), precision="exact", products="torch")
    single = [m._weight for m in reader.local_model.model.model.modules() if isinstance(m, UpcastLinear)]
    joined = [w for m in reader.local_model.model.model.modules() if isinstance(m, JoinedLinear) for w in m._weights]
    assert len(single) + len(joined) == 14
    theirs = {p.data_ptr() for p in model.parameters()}
    assert {weight.data_ptr() for weight in single + joined} <= theirs


@pytest.mark.parametrize("max_batch_tokens", [1, 20, 60, 200])
def test_the_split_changes_only_rounding(tiny_reader, max_batch_tokens):
    whole, parts = tiny_reader.score(SEQUENCES), tiny_reader.score(SEQUENCES, max_batch_tokens=max_batch_tokens)
    assert parts.passes > whole.passes == 1
    np.testing.assert_allclose(parts.logprob, whole.logprob, atol=1e-4)
    assert parts.is_greedy.tolist() == whole.is_greedy.tolist()
    assert parts.stats.total_tokens == whole.stats.total_tokens


def test_neighbours_and_order_change_only_rounding(tiny_reader):
    whole = tiny_reader.score(SEQUENCES).logprob
    alone = [tiny_reader.score([s]).logprob[0] for s in SEQUENCES]
    backwards = tiny_reader.score(SEQUENCES[::-1]).logprob[::-1]
    np.testing.assert_allclose(whole, alone, atol=1e-4)
    np.testing.assert_allclose(whole, backwards, atol=1e-4)


def test_float64_agrees_with_the_models_own_to_the_last_digits():
    model = tiny_llama().double()
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    assert reader.arithmetic.dtype == torch.float64
    want = [w.sum() for w in one_by_one(model, SEQUENCES)]
    np.testing.assert_allclose(reader.score(SEQUENCES).logprob, want, atol=1e-10)


def test_greedy_is_what_the_model_would_write():
    model = tiny_llama()
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    context = [7, 8, 9]
    written = []
    for _ in range(4):
        with torch.inference_mode():
            written.append(int(model(torch.tensor([context + written])).logits[0, -1].argmax()))
    other = [*written[:-1], (written[-1] + 1) % 261]
    assert reader.score([(context, written), (context, other)]).is_greedy.tolist() == [True, False]


def test_threads_share_a_reader(tiny_reader):
    want = tiny_reader.score(SEQUENCES).logprob
    got: dict[int, np.ndarray] = {}
    threads = [
        threading.Thread(target=lambda i=i: got.update({i: tiny_reader.score(SEQUENCES).logprob})) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 4
    for result in got.values():
        np.testing.assert_allclose(result, want, atol=1e-4)


def test_loglikelihood_of_text_and_of_tokens(tiny_reader):
    text = tiny_reader.loglikelihood([("hello wo", "rld"), ("", "rld")], token_logprobs=True)
    encode = tiny_reader.encoder.piece
    ids = tiny_reader.loglikelihood([(encode("hello wo"), encode("rld")), ([], encode("rld"))])
    assert [r.logprob for r in text] == pytest.approx([r.logprob for r in ids], abs=1e-5)
    assert [r.num_tokens for r in text] == [3, 3]
    assert sum(text[0].token_logprobs) == pytest.approx(text[0].logprob)
    assert ids[0].token_logprobs is None
    assert tiny_reader.loglikelihood([]) == []


def test_too_long_is_an_error_or_truncated_by_name(tiny_reader):
    long = ([5] * 2100, [6, 7])
    with pytest.raises(ContextOverflowError, match=r"2101 tokens long.* is 2048"):
        tiny_reader.loglikelihood([long])
    cut = tiny_reader.loglikelihood([long], on_overflow="truncate")[0]
    same = tiny_reader.loglikelihood([([5] * 2047, [6, 7])])[0]
    assert cut.logprob == same.logprob
    assert (cut.truncated, same.truncated) == (53, 0)
    with pytest.raises(InputError, match="max_batch_tokens"):
        tiny_reader.loglikelihood([([5], [6])], max_batch_tokens=0)
    with pytest.raises(ContextOverflowError, match=r"continuation: 2100 tokens leave no room"):
        tiny_reader.loglikelihood([([5], [6] * 2100)], on_overflow="truncate")
    with pytest.raises(InputError, match="on_overflow"):
        tiny_reader.loglikelihood([long], on_overflow="shorten")


def test_exactly_the_context_length_fits(tiny_reader):
    assert tiny_reader.loglikelihood([([5] * 2047, [6, 7])])[0].num_tokens == 2


def test_a_path_that_does_not_fit_in_memory_is_refused_with_its_length(tiny_reader, monkeypatch):
    monkeypatch.setattr(tiny_reader.local_model.model, "overhead", memory.NO_OVERHEAD)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 100 * tiny_reader.local_model.model.bytes_per_token)
    assert tiny_reader.score([([5] * 60, [6]), ([7] * 60, [6])]).passes == 2
    assert tiny_reader.score([([5] * 60, [6]), ([7] * 60, [6])], max_batch_tokens=10**6).passes == 2
    with pytest.raises(OutOfBudgetError, match="one sequence of 300 tokens does not fit"):
        tiny_reader.score([([5] * 300, [6])])


def test_numbers_that_are_none_are_an_error():
    model = tiny_llama()
    with torch.no_grad():
        model.lm_head.weight[7] = float("nan")
    reader = Reader.load((model, byte_tokenizer()), precision="exact", check="off")
    with pytest.raises(NumericsError, match="sequence 0"):
        reader.score(SEQUENCES)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (("context", ""), "expected text to score"),
        (([1, 2], []), "got no token"),
        (("text", [1]), "both be text or both token ids"),
        (([1, 2], [261]), "below the vocabulary's 261"),
        (([999], [1]), "below the vocabulary's 261"),
        ("ab", "expected a pair"),
        (([1], [2], [3]), "expected a pair"),
        (5, "expected a pair"),
        ((None, [1]), r"requests\[0\]: context: expected text or token ids, got None"),
        (([[1], [2, 3]], [1]), r"requests\[0\]: context: expected text or token ids, got \[\[1\], \[2, 3\]\]"),
        (([1], ["a"]), r"requests\[0\]: continuation: expected text or token ids, got \['a'\]"),
    ],
)
def test_bad_requests_are_refused(tiny_reader, request_, message):
    with pytest.raises(InputError, match=message):
        tiny_reader.loglikelihood([request_])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": "high-ish"}, "precision"),
        ({"dtype": "int8"}, "dtype"),
        ({"device": "abacus"}, "device"),
    ],
)
def test_bad_load_arguments_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Reader.load((tiny_llama(), byte_tokenizer()), **arguments)


def test_models_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFoundError, match=r"config\.json"):
        Reader.load(tmp_path)
    with pytest.raises(ModelNotFoundError, match="no such file"):
        Reader.load(tmp_path / "absent" / "model.gguf")
    with pytest.raises(ModelNotFoundError, match="packaged model"):
        Reader.load("not a model")


def test_a_folder_loads_and_a_cut_file_is_named(tmp_path):
    model = tiny_llama()
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    reader = Reader.load(tmp_path, precision="exact")
    np.testing.assert_allclose(
        reader.score(SEQUENCES).logprob, [w.sum() for w in one_by_one(model, SEQUENCES)], atol=1e-4
    )
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ModelFileError, match="truncated"):
        Reader.load(tmp_path)


def test_repr_and_describe(tiny_reader):
    assert "weights float32" in repr(tiny_reader) and "'exact'" in repr(tiny_reader)
    assert tiny_reader.describe()["device"] == "cpu"


def test_a_closed_reader_says_so():
    with Reader.load((tiny_llama(), byte_tokenizer()), precision="exact") as reader:
        assert reader.tokenizer is reader.encoder.tokenizer and reader.device.type == "cpu"
        assert reader.model.config.model_type == "llama"
        assert reader.loglikelihood([("ab", "c")])[0].num_tokens == 1
    reader.close()
    for call in (lambda: reader.loglikelihood([("ab", "c")]), lambda: reader.generate(["ab"]), reader.budget):
        with pytest.raises(FastreaderError, match="closed; load it again"):
            call()


def test_progress_counts_passes(tiny_reader, monkeypatch):
    shown = []

    @contextlib.contextmanager
    def track(label, total, unit, show, *, after):
        steps = []
        yield steps.append
        shown.append((label, total, unit, show, after, sum(steps)))

    monkeypatch.setattr("fastreader.reader.loglikelihood.track", track)
    requests = [("one text", " a"), ("another text", " b")]
    assert tiny_reader.loglikelihood(requests, max_batch_tokens=15, progress=True).passes == 2
    tiny_reader.loglikelihood(requests)
    tiny_reader.score([([1, 2], [3])])
    once = ("scoring", 1, "passes")
    assert shown == [("scoring", 2, "passes", True, 1.0, 2), (*once, None, 1.0, 1), (*once, False, 1.0, 1)]
