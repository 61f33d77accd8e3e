"""PassageCache: the numbers of uncached calls, whatever is found, read or evicted, and nothing of another model."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from helpers.families import LONGROPE, tiny
from helpers.registry import patterns, tiny_model
from helpers.support import LONG_FORMS, byte_tokenizer, tiny_llama

import fastreader as fr
from fastreader.errors import FastreaderError, InputError, NotReloadableError
from fastreader.ops.linear.blocks import BlockWeight
from fastreader.reader import local_model

SOME = ["Llama", "Gemma2, window, caps", "Phi3, window", "GPT2", "Mixtral", "OPT"]
HYBRIDS = ["qwen3_next", "kimi_linear", "mamba2", "jamba", "recurrent_gemma", "lfm2", "falcon_h1", "minimax"]
TEXTS = ["The Nile is in Cairo.", "The Seine is in Paris.", "Cats sleep a lot, and so do dogs."]
QUESTIONS = ["Which river is in Cairo?", "What sleeps?"]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def exact(family):
    """Return a reader of a tiny model. Jamba's in float32 is 1e-5 nats off float64 with and without a cache."""
    model = tiny(family) if family in SOME else tiny_model(family, patterns(family)[0])
    model = model.double() if family == "jamba" else model
    return fr.Reader.load((model, byte_tokenizer()), device="cpu", precision="exact")


class Shelf:
    """Headers and passages of random tokens, and the questions asked of them.

    Args:
        seed: of the tokens. Some passages begin alike, and one begins another.
    """

    def __init__(self, seed: int, headers: int = 2, passages: int = 6, length: int = 20) -> None:
        self.rng = np.random.default_rng(seed)
        self.headers = [self.tokens(1, 8) for _ in range(headers)]
        self.passages = [self.tokens(2, length) for _ in range(passages)]
        self.passages += [self.passages[0] + self.tokens(1, 5), self.passages[1][:1] + self.tokens(1, 5)]

    def tokens(self, least: int, most: int) -> list[int]:
        return self.rng.integers(5, 261, self.rng.integers(least, most + 1)).tolist()

    def call(self, few: int = 4):
        """Return pairs, and where header and first passage end: with and without a question, lead or passage."""
        pairs, ends = [], []
        lead, question = self.tokens(0, 2) if self.rng.integers(2) else [], self.tokens(1, 6)
        for _ in range(self.rng.integers(1, few + 1)):
            header = self.headers[self.rng.integers(len(self.headers))]
            passage = self.passages[self.rng.integers(len(self.passages))]
            cut = len(header) + int(self.rng.integers(4) == 0)  # a header may hold the first token of the passage
            end = (min(cut, len(header) + len(passage) - 1), len(header) + len(passage))
            for continuation in (question, self.tokens(1, 4), []):
                kind = self.rng.integers(4)
                body = passage if kind else []
                pairs.append((header + body + (self.tokens(3, 9) if kind == 1 else lead), continuation))
                ends.append(((len(header),), end, end, ())[kind])
        return pairs, ends


def close(got, want, limit=1e-5):
    """Compare the log-probabilities of two calls, token by token."""
    for a, b in zip(got.token_logprobs, want.token_logprobs, strict=True):
        assert np.abs(a - b).max(initial=0) <= limit
    assert got.is_greedy.tolist() == want.is_greedy.tolist()
    if got.passes == want.passes == 1:
        assert got.stats.computed_tokens + got.stats.cached_tokens == want.stats.computed_tokens


@pytest.mark.parametrize("family", [*SOME, *HYBRIDS])
@pytest.mark.long(keep=7)
def test_the_numbers_are_those_without_it(family):
    """In a first call, which reads, in a second one, which does not, and in one with another question."""
    reader = exact(family)
    cache = fr.PassageCache()
    cached, rng = reader.with_cache(cache), np.random.default_rng(1)
    header = rng.integers(5, 261, 9).tolist()
    passages = [rng.integers(5, 261, n).tolist() for n in (21, 1, 30)]
    for turn, lead in enumerate(([], [], [7, 8])):
        pairs = [(header + passage + lead, [5, 6, 7 + turn]) for passage in passages]
        ends = [(9, 9 + len(passage)) for passage in passages]
        got = cached.score(pairs, ends=ends)
        close(got, reader.score(pairs))
        # without a lead, the last token of a passage predicts the question
        assert got.stats.cached_tokens == (0, 9 + 20 + 29, 9 + 21 + 1 + 30)[turn]
    info = cache.info()
    assert (info.hits, info.misses, info.entries, info.evictions) == (6, 3, 4, 0)
    assert info.nbytes == sum(entry.total_bytes for entry in cache.entries._held.values()) > 0
    assert info.to_dict()["max_bytes"] == cache.max_bytes == 1 << 30


@pytest.mark.parametrize("family", ["Llama", "jamba"])
@pytest.mark.parametrize("split", [[(3, 13), (5, 13)], [(13,), (3, 13)], [(3, 13), (2, 3), (2, 13)], [(5, 13), (13,)]])
def test_one_text_with_several_headers(family, split):
    """What is kept of the same tokens depends on where the header before them ended."""
    reader = exact(family)
    pairs = [([*range(20, 33), 50, 51], [60, 61])]
    want = reader.score(pairs)
    cached = reader.with_cache(fr.PassageCache())
    for ends in [each for each in split for _ in range(2)] + split:
        close(cached.score(pairs, ends=[ends]), want)


def test_templates_whose_headers_begin_alike():
    reader = exact("Llama")
    one = fr.Template(header="Read.\n", passage_without_title="Passages\n{text}")
    other = fr.Template(header="Read.\nPassages\n", passage_without_title="{text}")
    cache = fr.PassageCache()
    for template in (one, other, other, one):
        got, want = (
            [result.value for result in sorted(ranked, key=lambda result: result.index)]
            for ranked in (
                fr.rerank(reader, QUESTIONS[0], TEXTS, template=template, cache=cache),
                fr.rerank(reader, QUESTIONS[0], TEXTS, template=template),
            )
        )
        assert got == pytest.approx(want, abs=1e-5)
    assert cache.info().hits == 6


def test_bits_are_those_without_it():
    """With the extension's products, as docs/determinism.md promises, and in passes of any size."""
    reader = fr.Reader.load((tiny_llama(), byte_tokenizer()), device="cpu", precision="exact", products="float32")
    cached, shelf = reader.with_cache(fr.PassageCache()), Shelf(3)
    for budget in (None, 40, 25):
        for _ in range(4):
            pairs, ends = shelf.call()
            got, want = cached.score(pairs, ends=ends, max_batch_tokens=budget), reader.score(pairs)
            assert [a.tolist() for a in got.token_logprobs] == [b.tolist() for b in want.token_logprobs]


@pytest.mark.parametrize("family", ["Llama", "Gemma2, window, caps", "jamba", "mamba2"])
def test_random_mixtures(family):
    """A draw of `test_many_random_mixtures`."""
    assert min(mix(family, 0, 20)) > 0


@pytest.mark.fuzz
@pytest.mark.parametrize("family", [*SOME, "jamba", "mamba2", "qwen3_next"])
def test_many_random_mixtures(family):
    found = [mix(family, seed, 20) for seed in range(1, 101 if LONG_FORMS else 3)]
    assert min(map(sum, zip(*found, strict=True))) > len(found)  # one draw may have no hit


def mix(family, seed, calls):
    """Ask about a shelf by caches that hold one passage, a few, or all, cleared now and then.

    Returns the evictions of a small cache and the hits of a large one.
    """
    reader = exact(family)
    running, shelf = reader.local_model.model, Shelf(seed)
    entry = 10 * running.key_value_bytes + 2 * running.state_bytes
    caches = [fr.PassageCache(max_bytes=int(entries * entry)) for entries in (0.5, 2.5, 6, 1000)]
    for _ in range(calls):
        pairs, ends = shelf.call()
        cache = caches[shelf.rng.integers(len(caches))]
        if shelf.rng.integers(8) == 0:
            cache.clear()
        budget = None if shelf.rng.integers(2) else int(shelf.rng.integers(10, 80))
        got = reader.with_cache(cache).score(pairs, ends=ends, max_batch_tokens=budget)
        close(got, reader.score(pairs, max_batch_tokens=budget))
        for each in caches:
            assert each.info().nbytes == sum(e.total_bytes for e in each.entries._held.values()) <= each.max_bytes
    return caches[1].info().evictions, caches[3].info().hits


def test_the_least_recently_used_leaves_first_and_the_header_last(tiny_reader):
    header, passages = [5, 6, 7], [[10 + i] * 10 for i in range(4)]
    size = tiny_reader.local_model.model.key_value_bytes
    cache = fr.PassageCache(max_bytes=(3 + 3 * 10) * size)
    cached = tiny_reader.with_cache(cache)

    def ask(*which):
        cached.score([(header + passages[i] + [8], [9]) for i in which], ends=[(3, 13)] * len(which))
        return cache.info().hits, cache.info().misses, cache.info().evictions

    assert ask(0, 1, 2) == (0, 3, 0)
    assert ask(0) == (1, 3, 0)
    assert ask(3) == (1, 4, 1)  # evicts passage 1
    assert ask(0, 2, 3) == (4, 4, 1)
    assert ask(1) == (4, 5, 2)
    assert cache.info().nbytes == cache.max_bytes
    cache.clear()
    assert (len(cache), cache.info().nbytes) == (0, 0)
    assert ask(1) == (4, 6, 2)


def test_a_passage_larger_than_the_cache_is_not_kept(tiny_reader):
    assert repr(fr.PassageCache(2000)) == "PassageCache(0 of 2,000 bytes)"
    cache = fr.PassageCache(max_bytes=5 * tiny_reader.local_model.model.key_value_bytes)
    for _ in range(2):
        tiny_reader.with_cache(cache).score([([5, 6, 7, *[8] * 9], [9])], ends=[(3, 12)])
    assert (cache.info().misses, cache.info().entries) == (2, 1)  # the header


def calls_of(reader, **options):
    """Return what each call that reads passages alone or first returns, by name: numbers, and its tokens."""
    question, own = QUESTIONS[0], {"candidates": ["Nile", "Seine"]}
    ranked = fr.rerank(reader, question, TEXTS, **options)
    both = fr.rerank(reader, QUESTIONS, [TEXTS, TEXTS[:2]], **options)
    found = fr.conflicts(reader, question, TEXTS, **own, **options)
    proposed = fr.conflicts(reader, question, TEXTS, **options)
    part = fr.attribute(reader, question, TEXTS, "Nile", **options)
    scores = fr.score_permutations(reader, question, TEXTS, **own, closed_book=True, query_likelihood=True, **options)
    return {
        "rerank": ([r.value for r in ranked.results], ranked.stats),
        "rerank many": ([[r.value for r in each.results] for each in both], None),
        "conflicts": ([found.logprobs.tolist(), found.closed_book_logprobs.tolist()], found.stats),
        "conflicts, proposed": (proposed.logprobs.tolist(), proposed.stats),
        "attribute": (part.shapley.tolist(), part.stats),
        "score_permutations": (
            [scores.logprobs.tolist(), scores.query_logprobs.tolist(), scores.closed_book_logprobs.tolist()],
            scores.stats,
        ),
    }


def test_every_call_returns_the_same_with_a_cache(tiny_reader):
    plain, cache = calls_of(tiny_reader), fr.PassageCache()
    calls_of(tiny_reader, cache=cache)
    assert cache.info().misses == len(TEXTS)  # all calls share the header of the template
    for name, (numbers, stats) in calls_of(tiny_reader.with_cache(cache)).items():
        want, before = plain[name]
        assert np.allclose(flat(numbers), flat(want), rtol=0, atol=1e-5), name
        if stats is not None:
            assert stats.cached_tokens > 20, name
            assert stats.cached_tokens + stats.computed_tokens == before.computed_tokens, name
    assert cache.info().misses == len(TEXTS)


def flat(numbers):
    """Flatten nested lists."""
    return [x for each in numbers for x in flat(each)] if isinstance(numbers, list) else [numbers]


def test_costs_are_known_beforehand(tiny_reader):
    """Hits included, and without a look-up being counted."""
    cached = tiny_reader.with_cache(cache := fr.PassageCache())
    asked = {"candidates": ["Nile", "a sea"], "query_likelihood": True}
    plain = fr.permutation_cost(tiny_reader, QUESTIONS[0], TEXTS, **asked)
    assert fr.permutation_cost(cached, QUESTIONS[0], TEXTS, **asked) == plain
    fr.rerank(cached, QUESTIONS[1], TEXTS)
    before = cache.info()
    cost = fr.permutation_cost(cached, QUESTIONS[0], TEXTS, **asked)
    assert fr.permutation_cost(tiny_reader, QUESTIONS[0], TEXTS, **asked, cache=cache) == cost
    assert cache.info() == before
    assert cost == fr.score_permutations(cached, QUESTIONS[0], TEXTS, **asked).stats
    assert cost.cached_tokens > sum(map(len, TEXTS))
    small = fr.permutation_cost(cached, QUESTIONS[0], TEXTS, **asked, max_batch_tokens=100)
    assert small.cached_tokens > cost.cached_tokens  # a header for each pass


def test_a_template_with_the_question_first_keeps_nothing(tiny_reader):
    cache, template = fr.PassageCache(), fr.Template(question_first=True)
    plain = fr.score_permutations(tiny_reader, QUESTIONS[0], TEXTS, ["Nile"], template=template)
    got = fr.score_permutations(tiny_reader, QUESTIONS[0], TEXTS, ["Nile"], template=template, cache=cache)
    assert got.logprobs.tolist() == plain.logprobs.tolist()
    assert cache.info().entries == 0


def test_another_header_or_separator_is_another_prompt(tiny_reader):
    cache = fr.PassageCache()
    for template in (None, fr.Template(header="Read:\n"), fr.Template(separator="\n--\n"), fr.Template()):
        got = fr.rerank(tiny_reader, QUESTIONS[0], TEXTS, template=template, cache=cache)
        want = fr.rerank(tiny_reader, QUESTIONS[0], TEXTS, template=template)
        assert [r.value for r in got.results] == pytest.approx([r.value for r in want.results], abs=1e-5)
    assert (cache.info().misses, cache.info().hits) == (9, 3)


def test_each_model_and_precision_has_its_own(tmp_path):
    """Other weights, another precision, type or kind of products: nothing is shared. An equal reader shares all."""
    folders = []
    for seed in (0, 1):
        folders.append(tmp_path / str(seed))
        tiny_llama(seed).save_pretrained(folders[-1])
        byte_tokenizer().save_pretrained(folders[-1])
    cache, load = fr.PassageCache(), partial(fr.Reader.load, device="cpu", check="off")
    readers = [
        load(folders[0], precision="exact"),
        load(folders[1], precision="exact"),
        load(folders[0], precision="fast"),
        load(folders[0], precision="exact", dtype="float64"),
        load(folders[0], precision="exact", products="torch"),
    ]
    pairs, ends = [([5, 6, 7, *range(20, 40), 8], [9, 10])], [(3, 23)]
    for reader in readers:
        before = cache.info()
        got, want = reader.with_cache(cache).score(pairs, ends=ends), reader.score(pairs)
        assert got.logprob[0] == pytest.approx(want.logprob[0], abs=1e-5)
        assert (cache.info().hits, cache.info().misses) == (before.hits, before.misses + 1)
    again = load(folders[0], precision="exact").with_cache(cache)
    assert again.score(pairs, ends=ends).stats.cached_tokens == 23
    given = fr.Reader.load((tiny_llama(0), byte_tokenizer()), device="cpu", precision="exact")
    assert given.with_cache(cache).score(pairs, ends=ends).stats.cached_tokens == 23  # the same weights


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: weight.data.mul_(1.5),
        lambda weight: weight[7:9].mul_(1.5),
        lambda weight: weight.set_(weight.detach() * 1.5),
    ],
    ids=["data", "rows", "memory"],
)
def test_weights_that_change_in_place_are_not_served(model, change):
    """A loaded reader's passages are read again. A given model that changes is an error, as without a cache."""
    cache, loaded = fr.PassageCache(), fr.Reader.load(model, device="cpu", precision="exact", check="off")
    pairs, ends = [([5, 6, 7, *range(20, 40), 8], [9, 10])], [(3, 23)]
    cached = loaded.with_cache(cache)
    cached.score(pairs, ends=ends)
    assert cached.score(pairs, ends=ends).stats.cached_tokens == 23
    with torch.no_grad():
        change(next(loaded.model.parameters()))
    assert cached.score(pairs, ends=ends).stats.cached_tokens == 0
    assert cached.score(pairs, ends=ends).stats.cached_tokens == 23
    given = tiny_llama()
    cached = fr.Reader.load((given, byte_tokenizer()), device="cpu", precision="exact").with_cache(cache)
    cached.score(pairs, ends=ends)
    given.lm_head.weight.data.mul_(2)
    with pytest.raises(FastreaderError, match="weights of the given model changed"):
        cached.score(pairs, ends=ends)


def test_keys_of_a_rotary_regime_serve_that_regime_only():
    model = tiny_llama(rope_parameters=LONGROPE, max_position_embeddings=96)
    reader, cache = fr.Reader.load((model, byte_tokenizer()), device="cpu", precision="exact"), fr.PassageCache()
    cached = reader.with_cache(cache)
    for length in (2, 30, 2, 30):
        pairs, ends = [([5, 6, 7, *range(20, 30), *[8] * length], [9, 10])], [(3, 13)]
        close(cached.score(pairs, ends=ends), reader.score(pairs))
    assert (cache.info().misses, cache.info().hits) == (2, 2)


def test_threads_share_a_cache(tiny_reader):
    shelf = Shelf(5)
    cache = fr.PassageCache(max_bytes=50 * tiny_reader.local_model.model.key_value_bytes)
    cached, calls = tiny_reader.with_cache(cache), [shelf.call() for _ in range(24)]
    want = [tiny_reader.score(pairs) for pairs, _ in calls]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda call: cached.score(call[0], ends=call[1]), calls))
    for one, other in zip(got, want, strict=True):
        close(one, other)
    assert cache.info().nbytes == sum(e.total_bytes for e in cache.entries._held.values()) <= cache.max_bytes


def test_bad_arguments_are_refused(tiny_reader):
    with pytest.raises(InputError, match="max_bytes: expected an integer of at least 1"):
        fr.PassageCache(max_bytes=0)
    cached = tiny_reader.with_cache(fr.PassageCache())
    for ends, problem in (
        ([], r"ends: expected 1 lists"),
        ([(2, 2)], r"ends\[0\]: expected ascending numbers from 1 to 3"),
        ([(2, 4)], r"ends\[0\]: expected ascending"),
        ([(0,)], r"ends\[0\]: expected ascending"),
    ):
        with pytest.raises(InputError, match=problem):
            cached.score([([5, 6, 7], [8])], ends=ends)
    with pytest.raises(InputError, match="cache: expected None for a Session"), tiny_reader.session([5]) as session:
        fr.rerank(session, QUESTIONS[0], TEXTS, cache=fr.PassageCache())
    with pytest.raises(InputError, match="cache: expected a PassageCache"):
        tiny_reader.with_cache({})
    with pytest.raises(NotReloadableError, match="made from a model object"):
        pickle.dumps(cached)


def test_it_is_a_reader_in_all_else(tiny_reader):
    cached = tiny_reader.with_cache(fr.PassageCache())
    assert cached.describe() == tiny_reader.describe()
    assert cached.with_cache(other := fr.PassageCache()).passage_cache is other
    (text,) = cached.generate(["Why?"], max_new_tokens=3)[0]
    assert text.token_ids == tiny_reader.generate(["Why?"], max_new_tokens=3)[0][0].token_ids
    with cached.session([5, 6, 7], cache_scored=True) as session:
        assert session.score([([5, 6, 7, 8], [9])]).stats.cached_tokens == 3
    assert cached.score([([5, 6, 7], [8])]).stats.cached_tokens == 0


@pytest.mark.parametrize("family", ["Llama", "Gemma2, window, caps", "jamba"])
def test_a_session_copies_passages_from_the_cache(family):
    """And adds new ones, if no layer is recurrent. The reader's own session finds the same numbers."""
    reader, cache, texts = exact(family), fr.PassageCache(), ["Read.\n", "One passage.\n", "Another passage.\n"]
    cached, model = reader.with_cache(cache), reader.local_model.model
    prefixes = [texts, texts[:1] + texts[2:], "one text"]
    pairs = [(reader.prefix(prefix), [9, 8]) for prefix in prefixes[:2]]
    header, *first = (len(reader.prefix(each)) for each in (texts[:1], texts[:2], texts[:1] + texts[2:]))
    want, ends = reader.score(pairs), [(header, first[0]), (header, first[1])]
    with reader.session(*prefixes) as session:
        before = session.stats
    with cached.session(*prefixes) as session:
        close(session.score(pairs), want)
        assert session.stats == before
    assert (cache.info().hits, cache.info().misses) == (0, 2)
    assert cache.info().entries == (0 if model.mixers else 3)
    close(cached.score(pairs, ends=ends), want)
    for open_one in (cached.session, lambda *these: cached.session(cache_scored=True).session(*these)):
        cache.clear()
        cached.score(pairs, ends=ends)
        with open_one(*prefixes) as session:
            cache.clear()  # the session has its own copy
            close(session.score(pairs), want)
        # all but the last token of the second prefix, after which a text may begin
        assert session.stats.cached_tokens == first[0] + first[1] - header - 1
        assert session.stats.computed_tokens == before.computed_tokens - session.stats.cached_tokens


def test_only_prefixes_in_pieces_have_passages(tiny_reader):
    cached = tiny_reader.with_cache(cache := fr.PassageCache())
    with cached.session("Read.\nOne passage.", [5, 6, 7], ["Read.\n"], ["Read.\n", "", "more"]):
        assert cache.info().entries == 0
    with cached.session(["Read.\n", "One"]):
        assert (cache.info().entries, cache.info().misses) == (2, 1)


def test_a_miss_is_planned_once(tiny_reader, monkeypatch):
    """If the passes that the caller planned leave memory for what they keep, else again."""
    shelf, partition, planned = Shelf(3), local_model.partition, []
    monkeypatch.setattr(local_model, "partition", lambda *given: planned.append(given) or partition(*given))
    for most, times in ((None, 1), (40, 2)):
        cached = tiny_reader.with_cache(fr.PassageCache())
        pairs, ends = shelf.call(few=8)
        wanted = tiny_reader.score(pairs)
        planned.clear()
        trees = cached.plan(pairs, most)
        found = cached.score(pairs, ends=ends, trees=trees, max_batch_tokens=most)
        assert cached.passage_cache.info().misses > 0
        assert len(planned) == times
        close(found, wanted)


def test_a_fingerprint_unpacks_no_quantised_matrix(packaged_reader, monkeypatch):
    unpacked, values = [], BlockWeight.values

    def counting(weight, first=0, count=None):
        unpacked.append(count)
        return values(weight, first, count)

    monkeypatch.setattr(BlockWeight, "values", counting)
    before = packaged_reader.local_model.fingerprint()
    assert packaged_reader.local_model.fingerprint() == before
    assert len(unpacked) > 0 and set(unpacked) == {1}
