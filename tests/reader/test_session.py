"""reader.session: the same numbers as without it, and only what follows the prefix computed."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from helpers.families import LONGROPE, tiny
from helpers.support import byte_tokenizer

from fastreader import Example, Passage, Reader, permutation_cost, score_permutations
from fastreader.core.protocol import ReaderProtocol
from fastreader.errors import ContextOverflowError, FastreaderError, InputError, OutOfBudgetError
from fastreader.moi import rerank
from fastreader.scoring.reading import reading_prompts

RNG = np.random.default_rng(11)
PREFIX = RNG.integers(5, 261, 25).tolist()
CONTEXTS = [
    [*PREFIX, *RNG.integers(5, 261, 6).tolist()],
    [*PREFIX, *RNG.integers(5, 261, 9).tolist()],
    PREFIX,  # the prefix itself: its last state is needed, though its keys are kept
    PREFIX[:10] + RNG.integers(5, 261, 4).tolist(),  # leaves the prefix midway
    RNG.integers(5, 261, 7).tolist(),  # has nothing of it
]
REQUESTS = [(c, RNG.integers(5, 261, 3).tolist()) for c in CONTEXTS for _ in range(2)]
SOME = ["Llama", "Gemma2, window, caps", "Phi3, window", "GPT2", "Mixtral", "OPT"]


@pytest.mark.parametrize("family", SOME)
def test_the_numbers_are_those_without_it(family):
    reader = Reader.load((tiny(family), byte_tokenizer()), precision="exact")
    plain = reader.loglikelihood(REQUESTS, token_logprobs=True)
    written = reader.generate(CONTEXTS, max_new_tokens=6)
    with reader.session(PREFIX) as kept:
        got = kept.loglikelihood(REQUESTS, token_logprobs=True)
        texts = kept.generate(CONTEXTS, max_new_tokens=6)
    for a, b in zip(got, plain, strict=True):
        assert a.token_logprobs == pytest.approx(b.token_logprobs, abs=1e-4)
    assert [t.token_ids for (t,) in texts] == [t.token_ids for (t,) in written]
    assert got.stats.cached_tokens == len(PREFIX) - 1  # the last token's state predicts a continuation
    assert got.stats.computed_tokens == plain.stats.computed_tokens - got.stats.cached_tokens
    assert got.stats.total_tokens == plain.stats.total_tokens
    assert texts.stats.computed_tokens == written.stats.computed_tokens - texts.stats.cached_tokens


def test_float64_agrees_to_the_last_digits():
    reader = Reader.load((tiny("Llama").double(), byte_tokenizer()), precision="exact")
    with reader.session(PREFIX) as kept:
        got = [r.logprob for r in kept.loglikelihood(REQUESTS)]
    assert got == pytest.approx([r.logprob for r in reader.loglikelihood(REQUESTS)], abs=1e-10)


def test_several_prefixes_and_a_split_pass(tiny_reader):
    prefixes = [PREFIX, [*PREFIX[:12], 7, 8, 9], [9, 9, 9]]
    contexts = [*CONTEXTS, prefixes[1] + [5], prefixes[2] + [6]]
    plain = tiny_reader.generate(contexts, max_new_tokens=4)
    with tiny_reader.session(*prefixes) as kept:
        assert kept.stats.computed_tokens == 25 + 3 + 3
        for max_batch_tokens in (None, 40):
            got = kept.generate(contexts, max_new_tokens=4, max_batch_tokens=max_batch_tokens)
            assert [t.token_ids for (t,) in got] == [t.token_ids for (t,) in plain]
            assert got.stats.cached_tokens >= 24 + 3 + 3
        assert got.passes > 1


def test_prefixes_read_in_several_passes(tiny_reader, monkeypatch):
    """If one pass cannot hold all prefixes, a later pass continues from the earlier one."""
    prefixes = [PREFIX, PREFIX[:20] + [7] * 10, [9] * 20]
    plain = [r.logprob for r in tiny_reader.loglikelihood(REQUESTS)]
    whole = tiny_reader.local_model.plan
    monkeypatch.setattr(
        tiny_reader.local_model, "plan", lambda s, m=None, new_tokens=0: whole(s, 30, new_tokens=new_tokens)
    )
    size = (25 + 10 + 20) * tiny_reader.local_model.model.key_value_bytes
    kept = tiny_reader.session(*prefixes, max_bytes=size)
    monkeypatch.undo()
    assert kept.stats.computed_tokens == 25 + 10 + 20
    assert kept.stats.cached_tokens == 20
    assert kept.nbytes == size
    assert [r.logprob for r in kept.loglikelihood(REQUESTS)] == pytest.approx(plain, abs=1e-4)
    assert kept.loglikelihood([([9] * 20 + [5], [6])]).stats.cached_tokens == 20


@pytest.mark.parametrize("family", SOME)
def test_a_session_that_grows_reads_only_what_is_new(family):
    reader = Reader.load((tiny(family), byte_tokenizer()), precision="exact")
    plain = reader.loglikelihood(REQUESTS)
    with reader.session(PREFIX[:12], max_bytes=35 * reader.local_model.model.key_value_bytes) as kept:
        of_a_token = kept.nbytes / 12
        kept.prefill(PREFIX[:18], [*PREFIX[:12], 7, 8])
        kept.prefill(PREFIX)
        assert (kept.stats.computed_tokens, kept.stats.cached_tokens) == (12 + 6 + 2 + 7, 12 + 18)
        assert kept.nbytes == (25 + 2) * of_a_token
        with pytest.raises(OutOfBudgetError, match="are allowed"):
            kept.prefill([9] * 9)
        got, again = kept.loglikelihood(REQUESTS), kept.score(REQUESTS)
    assert [r.logprob for r in got] == pytest.approx([r.logprob for r in plain], abs=1e-4)
    assert again.logprob.tolist() == [r.logprob for r in got]
    assert got.stats.cached_tokens == again.stats.cached_tokens == len(PREFIX) - 1
    with pytest.raises(FastreaderError, match="closed"):
        kept.prefill([9])


def test_permutations_are_scored_after_what_is_kept(tiny_reader):
    """The orders that were read for an answer are not read again to score candidates. Many examples alike."""
    passages = ["The sky is blue.", "Grass is green.", "Roses are red."]
    example = Example("Which colour is the sky?", [Passage(p) for p in passages], candidates=["blue", "a deep red"])
    orders = [[0, 1, 2], [2, 0, 1]]
    plain = score_permutations(tiny_reader, example, permutations=orders, query_likelihood=True)
    prompts = reading_prompts(tiny_reader, example.question, example.passages, orders)
    with tiny_reader.session(*prompts) as kept:
        assert permutation_cost(kept, example, permutations=orders, query_likelihood=True) == plain.stats
        got = score_permutations(kept, example, permutations=orders, query_likelihood=True)
        two = list(score_permutations(kept, [example, example], permutations=orders, query_likelihood=True))
        ranked = rerank(kept, example)
    for scores in two:
        assert scores.logprobs == pytest.approx(plain.logprobs, abs=1e-4)
        assert scores.stats == plain.stats  # as if alone, and without a session
    assert got.logprobs == pytest.approx(plain.logprobs, abs=1e-4)
    assert got.question_logprobs == pytest.approx(plain.question_logprobs, abs=1e-4)
    assert got.query_logprobs == pytest.approx(plain.query_logprobs, abs=1e-4)
    assert got.stats.cached_tokens > sum(len(p) for p in passages)
    assert got.stats.computed_tokens == plain.stats.computed_tokens - got.stats.cached_tokens
    assert got.reader == plain.reader
    own = rerank(tiny_reader, example)
    assert [p.index for p in ranked.passages] == [p.index for p in own.passages]
    assert ranked.cost.cached_tokens > 0
    assert ranked.cost.computed_tokens + ranked.cost.cached_tokens == own.cost.computed_tokens


def test_prefixes_are_read_in_passes_of_max_tokens(tiny_reader, monkeypatch):
    seen = []
    whole = tiny_reader.local_model.plan
    monkeypatch.setattr(tiny_reader.local_model, "plan", lambda s, m=None, new_tokens=0: seen.append(m) or whole(s, m))
    with tiny_reader.session(PREFIX, [9] * 20, max_batch_tokens=30) as kept:
        kept.prefill([8] * 4, max_batch_tokens=7)
        assert kept.stats.computed_tokens == 25 + 20 + 4
    assert seen == [30, 7]


def test_pieces_are_what_prompts_start_with(tiny_reader):
    pieces = ["Read.\n", "A passage.\n"]
    with tiny_reader.session(pieces) as kept:
        assert isinstance(kept, ReaderProtocol)
        prompts = [kept.prompt([*pieces, f"Question {i}?"]) for i in range(3)]
        assert all(p[: len(tiny_reader.prefix(pieces))] == tiny_reader.prefix(pieces) for p in prompts)
        got = kept.generate(prompts, max_new_tokens=2)
        assert got.stats.cached_tokens == len(tiny_reader.prefix(pieces))
        plain = tiny_reader.generate(prompts, max_new_tokens=2)
        assert [t for (t,) in got] == [t for (t,) in plain]
        label = kept.continuation("yes")
        assert kept.loglikelihood([(prompts[0], label)])[0].logprob == pytest.approx(
            tiny_reader.loglikelihood([(prompts[0], label)])[0].logprob, abs=1e-4
        )
    with tiny_reader.session("text as it is") as kept:
        assert kept.loglikelihood([("text as it is, and", " more")]).stats.cached_tokens == len("text as it is")


def test_scoring_leaves_no_keys_behind(tiny_reader, monkeypatch):
    """Keys are recorded for a session and for generation only."""
    from fastreader.models.passes.key_values import KeyValues

    def refuse(*args):
        raise AssertionError("keys were recorded")

    monkeypatch.setattr(KeyValues, "add_layer", refuse)
    tiny_reader.loglikelihood(REQUESTS)
    tiny_reader.generate(CONTEXTS, max_new_tokens=1)  # nothing follows the first token
    with pytest.raises(AssertionError):
        tiny_reader.generate(CONTEXTS, max_new_tokens=2)


def test_longrope_keys_serve_their_own_regime_only():
    model = tiny("Phi3", rope_parameters=LONGROPE, original_max_position_embeddings=24)
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    short, long = ([*PREFIX[:12], 5], [6, 7]), (PREFIX[:12] + [5] * 20, [6, 7])
    plain = [r.logprob for r in reader.loglikelihood([short, long])]
    with reader.session(PREFIX[:12]) as kept:
        got = kept.loglikelihood([short, long])
    assert [r.logprob for r in got] == pytest.approx(plain, abs=1e-4)
    assert got.stats.cached_tokens == 12


def test_memory_and_its_end(tiny_reader):
    model = tiny_reader.local_model.model
    kept = tiny_reader.session(PREFIX, max_bytes=25 * model.key_value_bytes)
    assert kept.nbytes == 25 * model.key_value_bytes
    kept.close()
    assert kept.nbytes == 0
    with pytest.raises(FastreaderError, match="closed"):
        kept.loglikelihood(REQUESTS)
    with pytest.raises(OutOfBudgetError, match=r"take 12,800 bytes, 12,799 are allowed"):
        tiny_reader.session(PREFIX, max_bytes=25 * model.key_value_bytes - 1)
    with pytest.raises(InputError, match="max_bytes: expected an integer or None, got '2 GB'"):
        tiny_reader.session(PREFIX, max_bytes="2 GB")


def test_bad_prefixes_are_refused(tiny_reader):
    with pytest.raises(InputError, match="at least one"):
        tiny_reader.session()
    with pytest.raises(InputError, match=r"prefixes: expected text or a list of integers or a list of texts, got 5"):
        tiny_reader.session(PREFIX, 5)
    with pytest.raises(ContextOverflowError, match=r"prefixes\[0\] is 3000 tokens long"):
        tiny_reader.session([5] * 3000)
    with pytest.raises(InputError, match="pieces"):
        tiny_reader.session(["", ""])


@pytest.mark.parametrize("precision", ["fast", "high"])
def test_other_precisions_run(precision):
    reader = Reader.load((tiny("Llama").to(torch.bfloat16), byte_tokenizer()), precision=precision)
    plain = [r.logprob for r in reader.loglikelihood(REQUESTS)]
    with reader.session(PREFIX) as kept:
        got = [r.logprob for r in kept.loglikelihood(REQUESTS)]
    assert got == pytest.approx(plain, abs=0.5 if precision == "fast" else 5e-3)


@pytest.mark.parametrize("family", SOME)
def test_what_is_scored_can_be_kept(family):
    """Scoring leaves its contexts behind: asking again, and writing after them, reads only the last token of each."""
    reader = Reader.load((tiny(family), byte_tokenizer()), precision="exact")
    prompts = [[*PREFIX, 3], [*PREFIX[:20], 4, 5]]
    requests = [(prompts[0], [6, 7]), (prompts[1], [8])]
    scored = reader.loglikelihood(requests)
    written = reader.generate(prompts, max_new_tokens=4)
    with reader.session(cache_scored=True) as kept:
        first = kept.loglikelihood(requests)
        tokens = len(kept._kept)
        again, texts = kept.score(requests), kept.generate(prompts, max_new_tokens=4)
        assert len(kept._kept) == tokens
    assert [r.logprob for r in first] == [r.logprob for r in scored]
    assert (first.stats.computed_tokens, first.stats.cached_tokens) == (scored.stats.computed_tokens, 0)
    assert tokens == scored.stats.computed_tokens
    assert again.logprob.tolist() == pytest.approx([r.logprob for r in scored], abs=1e-4)
    assert (again.stats.computed_tokens, again.stats.cached_tokens) == (3, tokens - 3)  # before 6, 7 and 8
    assert [t.token_ids for (t,) in texts] == [t.token_ids for (t,) in written]
    assert (texts.stats.computed_tokens, texts.stats.cached_tokens) == (
        2 + 2 * 4,
        28 - 2,
    )  # last tokens of prompts; what is written


def test_scores_that_may_not_be_kept_are_refused_beforehand(tiny_reader):
    model = tiny_reader.local_model.model
    size = (len(PREFIX) + 1) * model.key_value_bytes
    with tiny_reader.session(PREFIX, max_bytes=size, cache_scored=True) as kept:
        passes = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model, "score", lambda *a, **k: passes.append(a))
            with pytest.raises(OutOfBudgetError, match=f"take {size + model.key_value_bytes:,} bytes, {size:,} are"):
                kept.loglikelihood([([*PREFIX, 1], [5, 6])])
        assert not passes
        assert kept.nbytes == len(PREFIX) * model.key_value_bytes
        kept.loglikelihood([([*PREFIX, 1], [5])])
        assert kept.nbytes == size


@pytest.mark.parametrize("family", SOME)
def test_prefixes_kept_in_several_parts_serve_as_one(family, monkeypatch):
    """What is kept stays where it is until there are many parts. Then what is added goes behind what is no larger."""
    monkeypatch.setattr("fastreader.models.passes.prefix_cache._MAX_PARTS", 2)
    reader = Reader.load((tiny(family), byte_tokenizer()), precision="exact")
    plain = [r.logprob for r in reader.loglikelihood(REQUESTS)]
    with reader.session(PREFIX[:8]) as kept:
        parts, of_a_token = kept._kept._parts, kept.nbytes / 8
        first = parts[0].keys[0].data_ptr()
        sizes = []
        for more in (PREFIX[:18], PREFIX[:21], PREFIX[:22], PREFIX[:23], PREFIX):
            kept.prefill(more)
            sizes.append([len(part) for part in parts])
            assert parts[0].keys[0].data_ptr() == first
            got = kept.loglikelihood(REQUESTS)
            assert [r.logprob for r in got] == pytest.approx(plain, abs=1e-4)
        assert sizes == [[8, 10], [8, 10, 3], [8, 10, 3, 1], [8, 10, 3, 2], [8, 10, 7]]
        kept.prefill([9] * 30)
        assert [len(part) for part in parts] == [8, 47]
        got = kept.loglikelihood(REQUESTS)
        assert kept.nbytes == 55 * of_a_token
    assert [r.logprob for r in got] == pytest.approx(plain, abs=1e-4)
    assert got.stats.cached_tokens == len(PREFIX) - 1


def test_threads_share_a_session(tiny_reader, monkeypatch):
    """While one call puts what it read with the rest, no other looks for its beginnings there."""
    from fastreader.models.passes.key_values import KeyValues

    select = KeyValues.select
    monkeypatch.setattr(KeyValues, "select", lambda self, rows: (time.sleep(0.05), select(self, rows))[1])
    contexts = [[k, *PREFIX] for k in range(4)]

    def scored(reader):
        return lambda context: reader.loglikelihood([(context, [6, 7])])[0].logprob

    plain = list(map(scored(tiny_reader), contexts))
    with tiny_reader.session(cache_scored=True) as kept, ThreadPoolExecutor(4) as pool:
        got = [list(pool.map(scored(kept), contexts)) for _ in range(2)]
    assert got[0] == pytest.approx(plain, abs=1e-4)
    assert got[1] == pytest.approx(plain, abs=1e-4)
