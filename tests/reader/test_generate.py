"""Reader.generate: what a text depends on and what it does not, where it ends, what it costs, what is rejected."""

import numpy as np
import pytest
import torch
from helpers.families import LONGROPE, tiny
from helpers.support import byte_tokenizer, tiny_llama

from fastreader import Reader
from fastreader.core.protocol import Generation, Results
from fastreader.errors import ContextOverflowError, InputError, NumericsError, OutOfBudgetError
from fastreader.models.machine import memory
from fastreader.models.passes import decode_keys

RNG = np.random.default_rng(3)
SHARED = RNG.integers(5, 261, 20).tolist()
PROMPTS = [[*SHARED, *RNG.integers(5, 261, n).tolist()] for n in (0, 3, 7, 12)] + [[9, 8, 7]]
# With seed 4 a number falls within 1e-8 of a bound between two tokens, where rounding decides.
DRAWN = {"temperature": 0.9, "top_p": 0.95, "seed": 5, "max_new_tokens": 20}


def tokens(results) -> list[list[list[int]]]:
    return [[g.token_ids for g in group] for group in results]


def own_next(model, context) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([context]), use_cache=False).logits[0, -1]


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


@pytest.mark.parametrize("settings", [{"max_new_tokens": 20}, {**DRAWN, "n": 3}], ids=["greedy", "drawn"])
def test_neither_neighbours_nor_order_nor_splits_matter(tiny_reader, settings):
    whole = tiny_reader.generate(PROMPTS, **settings)
    assert whole.passes == 1
    alone = [tiny_reader.generate([p], **settings)[0] for p in PROMPTS]
    assert tokens(alone) == tokens(whole)
    assert tokens(tiny_reader.generate(PROMPTS[::-1], **settings))[::-1] == tokens(whole)
    parts = tiny_reader.generate(PROMPTS, max_batch_tokens=60, **settings)
    assert parts.passes > 1
    assert tokens(parts) == tokens(whole)
    assert parts.stats.total_tokens == whole.stats.total_tokens


def test_samples_share_everything_and_differ(tiny_reader):
    (texts,) = tiny_reader.generate([SHARED], n=8, **DRAWN)
    assert len({tuple(t.token_ids) for t in texts}) == 8
    copies = tiny_reader.generate([SHARED] * 8, **DRAWN)
    assert [t.token_ids for (t,) in copies] == [t.token_ids for t in texts]  # n copies of a prompt are n samples
    assert copies.stats.computed_tokens == len(SHARED) + sum(len(t.token_ids) for t in texts)
    fewer = tiny_reader.generate([SHARED], n=3, **DRAWN)
    assert tokens(fewer)[0] == [t.token_ids for t in texts[:3]]


def test_seeds(tiny_reader):
    def drawn(seed):
        return tokens(tiny_reader.generate(PROMPTS, **{**DRAWN, "seed": seed}))

    assert drawn(1) == drawn(1) == drawn(np.int64(1)) != drawn(2)
    greedy = tokens(tiny_reader.generate(PROMPTS, seed=1, max_new_tokens=20))
    assert greedy == tokens(tiny_reader.generate(PROMPTS, seed=2, max_new_tokens=20))


def test_token_logprobs_are_the_models_own(tiny_reader, model):
    """Under the plain distribution, however the tokens were drawn. The same as scoring the text afterwards."""
    results = tiny_reader.generate(PROMPTS, token_logprobs=True, **{**DRAWN, "top_k": 5})
    scored = tiny_reader.loglikelihood(
        [(p, g.token_ids) for p, (g,) in zip(PROMPTS, results, strict=True)], token_logprobs=True
    )
    for (text,), want in zip(results, scored, strict=True):
        assert text.token_logprobs == pytest.approx(want.token_logprobs, abs=1e-4)
        assert text.logprob == pytest.approx(want.logprob, abs=1e-3)
    assert tiny_reader.generate([SHARED], max_new_tokens=2)[0][0].token_logprobs is None
    assert results.stats.scored == sum(len(g.token_ids) for (g,) in results)


def test_the_first_tokens_follow_the_models_distribution(tiny_reader, model):
    """Chi-square of 4,000 draws of one token against the softmax, rare tokens pooled."""
    from scipy.stats import chisquare

    draws = 4000
    (texts,) = tiny_reader.generate([SHARED], n=draws, temperature=1.5, max_new_tokens=1, seed=0)
    probabilities = (own_next(model, SHARED).double() / 1.5).softmax(-1).numpy()
    # an end of text is drawn as any other token, but is not among the tokens
    counts = np.bincount([t.token_ids[0] if t.token_ids else 1 for t in texts], minlength=261)
    common = probabilities * draws >= 5
    observed = [*counts[common], counts[~common].sum()]
    expected = [*probabilities[common] * draws, probabilities[~common].sum() * draws]
    assert common.sum() > 20
    assert chisquare(observed, expected).pvalue > 0.01


def test_stop_strings_across_tokens(tiny_reader):
    """Every character is a token here, so that any longer stop string spans several."""
    (whole,) = tiny_reader.generate([SHARED], max_new_tokens=30)[0]
    text = whole.text
    for first, last in ((0, 2), (5, 9), (11, 12)):
        stop = text[first:last]
        (cut,) = tiny_reader.generate([SHARED], max_new_tokens=30, stop=["never written", stop])[0]
        assert cut.text == text[: text.index(stop)]
        assert cut.finish_reason == "stop"
        assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
        assert len(cut.token_ids) < 30


def test_stop_and_end_tokens(tiny_reader, model):
    (whole,) = tiny_reader.generate([SHARED], max_new_tokens=30)[0]
    last = whole.token_ids[7]
    place = whole.token_ids.index(last)
    (stopped,) = tiny_reader.generate([SHARED], max_new_tokens=30, stop_token_ids=[last])[0]
    assert (stopped.finish_reason, stopped.token_ids) == ("stop", whole.token_ids[:place])

    ending, other = tiny_llama(), next(t for t in range(5, 261) if t not in whole.token_ids)
    ending.generation_config.eos_token_id = [other, last]
    reader = Reader.load((ending, byte_tokenizer()), precision="exact")
    assert reader.end_tokens == {1, other, last}
    (ended,) = reader.generate([SHARED], max_new_tokens=30, token_logprobs=True)[0]
    assert (ended.finish_reason, ended.token_ids) == ("eos", whole.token_ids[:place])
    assert len(ended.token_logprobs) == place
    (none,) = reader.generate([SHARED + whole.token_ids[:place]], max_new_tokens=30)[0]
    assert (none.text, none.token_ids, none.finish_reason) == ("", [], "eos")


def test_finished_rows_leave_the_batch(tiny_reader, monkeypatch):
    """Passes get narrower as rows finish. What is left is as if alone."""
    alone = tiny_reader.generate([PROMPTS[1]], max_new_tokens=40)[0][0]
    others = [tiny_reader.generate([p], max_new_tokens=40)[0][0].token_ids for p in (PROMPTS[0], PROMPTS[2])]
    stop = [next(t for t in tokens_ if t not in alone.token_ids) for tokens_ in others]
    widths = []
    forward = tiny_reader.local_model.model.forward

    def counted(ids, positions, keys, *asked):
        widths.append(len(ids))
        return forward(ids, positions, keys, *asked)

    monkeypatch.setattr(tiny_reader.local_model.model, "forward", counted)
    results = tiny_reader.generate(PROMPTS[:3], max_new_tokens=40, stop_token_ids=stop)
    assert results[1][0].token_ids == alone.token_ids
    assert [g.finish_reason for (g,) in results] == ["stop", "length", "stop"]
    steps = widths  # prompts are read by `hidden`
    assert len(steps) == 39 and steps[0] <= 3 and steps[-1] == 1 and steps == sorted(steps, reverse=True)


def test_growing_room_changes_nothing(tiny_reader, monkeypatch):
    want = tokens(tiny_reader.generate(PROMPTS, max_new_tokens=40))
    monkeypatch.setattr(decode_keys, "_INITIAL_CAPACITY", 1)
    assert tokens(tiny_reader.generate(PROMPTS, max_new_tokens=40)) == want


def test_the_context_is_full(model):
    """A text reaches the end of the context and stops there. The last token is written, not read."""
    small = tiny_llama(max_position_embeddings=24)
    reader = Reader.load((small, byte_tokenizer()), precision="exact")
    (text,) = reader.generate([SHARED], max_new_tokens=50)[0]
    assert (len(text.token_ids), text.finish_reason) == (5, "length")
    assert len(reader.generate([SHARED + [5] * 4], max_new_tokens=50)[0][0].token_ids) == 1
    with pytest.raises(ContextOverflowError, match=r"prompts\[1\] is 25 tokens long.* is 24: no room"):
        reader.generate([SHARED, SHARED + [5] * 5])
    long = [*SHARED, *SHARED]
    (cut,) = reader.generate([long], max_new_tokens=5, on_overflow="truncate")[0]
    assert (cut.truncated, cut.prompt_tokens, len(cut.token_ids)) == (20, 20, 5)
    assert cut.token_ids == reader.generate([long[-20:]], max_new_tokens=5)[0][0].token_ids
    with pytest.raises(ContextOverflowError, match="no room for a prompt"):
        reader.generate([long], max_new_tokens=25, on_overflow="truncate")


def test_longrope_texts_cross_their_threshold():
    """Beyond the threshold every key changes, so the row is read again, as forwards without a cache do."""
    phi = tiny("Phi3", rope_parameters=LONGROPE, original_max_position_embeddings=24)
    reader = Reader.load((phi, byte_tokenizer()), precision="exact")
    prompts = [SHARED, SHARED[:10], SHARED + SHARED[:9]]
    results = reader.generate(prompts, max_new_tokens=12)
    assert results.passes == 3  # two regimes, and the first prompt again when its text crosses
    for prompt, (text,) in zip(prompts, results, strict=True):
        want: list[int] = []
        while len(want) < 12:
            want.append(int(own_next(phi, [*prompt, *want]).argmax()))
        assert text.token_ids == want


def test_dynamic_rotary_stops_at_its_threshold():
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    reader = Reader.load(
        (tiny("Llama", rope_parameters=scaling, max_position_embeddings=32), byte_tokenizer()), precision="exact"
    )
    (text,) = reader.generate([SHARED], max_new_tokens=50)[0]
    assert (len(text.token_ids), text.finish_reason) == (13, "length")


@pytest.mark.parametrize("family", ["Llama", "Gemma2, window, caps", "Mixtral", "GPT2"])
@pytest.mark.parametrize("precision", ["fast", "high"])
def test_other_precisions_write_what_they_score_highest(family, precision):
    """Each token is the most likely one by the same reader's own scoring, up to that precision's rounding."""
    reader = Reader.load((tiny(family).to(torch.bfloat16), byte_tokenizer()), precision=precision)
    results = reader.generate(PROMPTS, max_new_tokens=12, token_logprobs=True)
    written = [(p, g) for p, (g,) in zip(PROMPTS, results, strict=True) if g.token_ids]
    assert len(written) >= 3
    scored = reader.loglikelihood([(p, g.token_ids) for p, g in written], token_logprobs=True)
    difference = np.abs(
        np.concatenate([g.token_logprobs for _, g in written]) - np.concatenate([s.token_logprobs for s in scored])
    )
    if precision == "fast":  # half types differ from themselves when the order of a sum changes, see models.probe
        assert difference.mean() < 0.15 and difference.max() < 1.5
    else:
        assert difference.max() < 5e-3


def test_memory_decides_the_split(tiny_reader, monkeypatch):
    """The keys of what is written count before anything runs."""
    tiny_reader.generate(PROMPTS[:1], max_new_tokens=1)  # lays out the head
    model = tiny_reader.local_model.model
    size = model.bytes_per_token + model.key_value_bytes
    monkeypatch.setattr(tiny_reader.local_model.model, "overhead", memory.NO_OVERHEAD)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 200 * size)
    assert len(tiny_reader.plan([(p, ()) for p in PROMPTS])) == 1
    assert len(tiny_reader.plan([(p, ()) for p in PROMPTS], new_tokens=500)) > 1
    want = tokens(tiny_reader.generate(PROMPTS, max_new_tokens=5))
    many = tiny_reader.generate(PROMPTS, max_new_tokens=500, stop_token_ids=range(261))
    assert many.passes > 1 and all(not g.token_ids for (g,) in many)
    assert tokens(tiny_reader.generate(PROMPTS, max_new_tokens=5, max_batch_tokens=30)) == want
    with pytest.raises(OutOfBudgetError, match="and 2000 to generate does not fit"):
        tiny_reader.generate(PROMPTS, max_new_tokens=2000)


def test_choosing_tokens_takes_memory_too(tiny_reader, monkeypatch):
    """The logits of some rows, several copies of fewer, and an LM head that is laid out at the first token."""
    tiny_reader.generate(PROMPTS[:1], max_new_tokens=1)  # lays out the head
    head = tiny_reader.local_model.model.logits
    assert head.sampling_bytes(10) == 7 * 10 * 261 * 4
    product, chosen = (((size << 20) // (4 * 261)) * 4 * 261 for size in (16, 2))
    assert head.sampling_bytes(10**9) == product + 6 * chosen
    size = tiny_reader.local_model.model.bytes_per_token + tiny_reader.local_model.model.key_value_bytes
    monkeypatch.setattr(tiny_reader.local_model.model, "overhead", memory.NO_OVERHEAD)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 400 * size)
    sequences = [(p, ()) for p in PROMPTS]
    assert len(tiny_reader.plan(sequences, new_tokens=2)) == 1
    monkeypatch.setattr(type(head), "sampling_bytes", lambda self, rows: 200 * size)
    assert len(tiny_reader.plan(sequences, new_tokens=2)) > 1
    assert len(tiny_reader.plan(sequences)) == 1  # scoring chooses none


@pytest.mark.parametrize("sizes", [(1, 1), (3, 2), (4, 9), (100, 100)])
def test_logits_come_in_parts_that_are_those_of_the_whole(tiny_reader, monkeypatch, sizes):
    head, rng = tiny_reader.local_model.model.logits, np.random.default_rng(0)
    for name, rows in zip(("_product", "_chosen"), sizes, strict=True):
        monkeypatch.setattr(head, name, rows)
    for count in (0, 1, 2, 7, 30):
        states = torch.from_numpy(rng.normal(size=(count, 64))).float()
        whole = head(states) if count else torch.zeros(0, 261)
        for state_of in (None, *(np.repeat(np.arange(count), times) for times in (1, 4, rng.integers(0, 5, count)))):
            places, parts = [], [torch.zeros(0, 261)]
            for part, logits in head.parts(states, state_of):
                assert len(logits) == part.stop - part.start <= max(sizes)
                places += range(part.start, part.stop)
                parts.append(logits.clone())
            wanted = whole if state_of is None else whole[torch.from_numpy(state_of)]
            assert places == list(range(len(wanted)))
            torch.testing.assert_close(torch.cat(parts), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}])
def test_texts_do_not_depend_on_how_many_tokens_are_chosen_at_once(tiny_reader, monkeypatch, options):
    how = {**options, "n": 5, "max_new_tokens": 4, "token_logprobs": True}
    wanted = tiny_reader.generate(PROMPTS, **how)
    for name, rows in (("_product", 3), ("_chosen", 2)):
        monkeypatch.setattr(tiny_reader.local_model.model.logits, name, rows)
    found = tiny_reader.generate(PROMPTS, **how)
    assert tokens(found) == tokens(wanted)
    for group, other in zip(found, wanted, strict=True):
        for text, same in zip(group, other, strict=True):
            assert text.token_logprobs == pytest.approx(same.token_logprobs, abs=1e-5)


@pytest.mark.parametrize("precision", ["fast", "high"])
def test_a_head_laid_out_for_the_kernels_is_counted_until_it_is(precision):
    reader = Reader.load((tiny_llama().to(torch.bfloat16), byte_tokenizer()), precision=precision)
    head = reader.local_model.model.logits
    before = head.sampling_bytes(1)
    reader.generate([SHARED], max_new_tokens=1)
    after = head.sampling_bytes(1)
    assert after == 7 * 261 * 4
    packed = getattr(head._weight, "data", None)
    if type(head._weight).__name__ == "PackedWeight":
        assert 0.9 * packed.nbytes <= before - after <= packed.nbytes


def test_keys_take_the_memory_that_was_estimated(tiny_reader, monkeypatch):
    recorded = []
    whole = tiny_reader.local_model.model.hidden

    def watched(tree, impl="auto", **others):
        recorded.append((len(tree), others["key_values"]))
        return whole(tree, impl, **others)

    monkeypatch.setattr(tiny_reader.local_model.model, "hidden", watched)
    tiny_reader.generate(PROMPTS, max_new_tokens=2)
    ((count, record),) = recorded
    assert record.nbytes == count * tiny_reader.local_model.model.key_value_bytes


def test_prompts_as_text_and_as_tokens(tiny_reader):
    text = tiny_reader.generate(["hello", ""], max_new_tokens=3)
    ids = tiny_reader.generate([tiny_reader.encoder.piece("hello"), []], max_new_tokens=3)
    array = tiny_reader.generate([np.array(tiny_reader.encoder.piece("hello")), [0]], max_new_tokens=3)
    assert tokens(text) == tokens(ids) == tokens(array)
    assert text[0][0].prompt_tokens == 5
    assert tiny_reader.generate([]) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens: expected an integer from 1 to 1048576, got 0"),
        ({"max_new_tokens": "5"}, "max_new_tokens: expected an integer, got '5'"),
        ({"n": 1.5}, "n: expected an integer, got 1.5"),
        ({"n": 0}, "n: expected an integer from 1 to 10000, got 0"),
        ({"temperature": -1.0}, "temperature: .*got -1.0"),
        ({"temperature": float("nan")}, "temperature: .*got nan"),
        ({"temperature": 1.0, "top_k": 0}, "top_k: expected an integer of at least 1"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p: expected a finite number above 0 and at most 1"),
        ({"temperature": 1.0, "top_p": 1.5}, "top_p: expected a finite number above 0 and at most 1"),
        ({"stop": "text"}, "stop: expected a list"),
        ({"stop": [""]}, "stop: expected a list"),
        ({"stop_token_ids": ["a"]}, r"stop_token_ids\[0\]: expected an integer"),
        ({"seed": "a"}, "seed: expected an integer"),
        ({"seed": True}, "seed: expected an integer, got True"),
        ({"on_overflow": "shorten"}, "on_overflow"),
        ({"max_batch_tokens": 0}, "max_batch_tokens"),
    ],
)
def test_bad_arguments_are_refused(tiny_reader, arguments, message):
    with pytest.raises(InputError, match=message):
        tiny_reader.generate([SHARED], **arguments)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("one text", "prompts: expected a list of prompts"),
        (None, "prompts: expected a list of prompts, got None"),
        ([5], r"prompts\[0\]: expected text or token ids, got 5"),
        ([[261]], "below the vocabulary's 261, got 261"),
        ([[1.5]], r"prompts\[0\]: expected text or token ids, got \[1.5\]"),
        ([["a", "b"]], r"prompts\[0\]: expected text or token ids, got \['a', 'b'\]"),
        ([[2**63]], r"prompts\[0\]: expected text or token ids"),
        (["ok", "cut \ud83d"], r"prompts\[1\]: expected text that UTF-8 can hold"),
    ],
)
def test_bad_prompts_are_refused(tiny_reader, prompts, message):
    with pytest.raises(InputError, match=message):
        tiny_reader.generate(prompts)


def test_logits_that_are_none_are_an_error():
    broken = tiny_llama()
    with torch.no_grad():
        broken.lm_head.weight[7] = float("nan")
    reader = Reader.load((broken, byte_tokenizer()), precision="exact", check="off")
    with pytest.raises(NumericsError, match="not finite"):
        reader.generate([SHARED])


def test_a_bar_only_on_a_terminal(tiny_reader, capsys):
    tiny_reader.generate([SHARED], max_new_tokens=2)
    assert capsys.readouterr().err == ""


def test_progress_counts_every_text(tiny_reader, monkeypatch):
    from contextlib import contextmanager

    from fastreader.reader.generation import generate as generation

    shown = []

    @contextmanager
    def track(*settings):
        shown.append(settings)
        yield shown.append

    monkeypatch.setattr(generation, "track", track)
    tiny_reader.generate(PROMPTS, n=2, max_batch_tokens=60, progress=True, **{**DRAWN, "stop_token_ids": range(100)})
    assert shown[0] == ("generating", 10, "texts", True)
    assert sum(shown[1:]) == 10


def test_results_and_generations():
    from fastreader.core.tree import TreeStats

    text = Generation("a b", [5, 6], "eos", 3, token_logprobs=[-1.0, -0.5])
    assert text.logprob == -1.5
    assert Generation("a", [5], "eos", 3).logprob is None
    results = Results([text], TreeStats(1, 5, 4, 2), passes=2, seconds=0.5)
    assert results == [text] and results[0] is text
    assert (results.stats.sharing_ratio, results.passes, results.seconds) == (1.25, 2, 0.5)
    assert TreeStats(1, 2, 3, 4, 5) + TreeStats(1, 1, 1, 1) == TreeStats(2, 3, 4, 5, 5)
