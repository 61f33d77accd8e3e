import pytest
from helpers.scripted import ScriptedReader

from fastreader.data.answer_cache import Cache
from fastreader.errors import InputError
from fastreader.study.cached_reader import CachedReader


@pytest.fixture
def cache(tmp_path):
    with Cache(tmp_path / "cache.sqlite") as opened:
        yield opened


def test_only_new_requests_reach_the_reader(cache):
    inner = ScriptedReader(lambda prompt, i: prompt.upper())
    reader = CachedReader(inner, cache)
    first = reader.generate(["a", "b", "a"], max_new_tokens=4)
    assert [g[0].text for g in first] == ["A", "B", "A"] and inner.prompts == ["a", "b"]
    again = CachedReader(inner, cache).generate(["b", "c"], max_new_tokens=4)
    assert [g[0].text for g in again] == ["B", "C"] and inner.prompts == ["a", "b", "c"]
    assert again[0] == first[1]


def test_options_and_readers_are_part_of_the_key(cache):
    inner = ScriptedReader(lambda prompt, i: f"{prompt}{len(inner.prompts)}")
    reader = CachedReader(inner, cache)
    for options in ({"max_new_tokens": 4}, {"max_new_tokens": 5}, {"max_new_tokens": 4, "stop": ["\n"]}):
        reader.generate(["a"], **options)
    other = ScriptedReader(lambda prompt, i: "other")
    other.describe = lambda: {"name": "another"}
    assert CachedReader(other, cache).generate(["a"], max_new_tokens=4)[0][0].text == "other"
    assert inner.prompts == ["a"] * 3


def test_which_check_ran_is_no_part_of_the_key(cache):
    """It is full at the first load of a model and quick afterwards."""
    readers = []
    for check in ("full", "quick", "off"):
        inner = ScriptedReader(lambda prompt, i: prompt.upper(), score=lambda context, continuation: -1.0)
        inner.describe = lambda check=check: {"name": "m", "revision": "1", "check": check}
        reader = CachedReader(inner, cache)
        reader.generate(["a"], max_new_tokens=4), reader.loglikelihood([("a", "x")])
        readers.append(inner)
    assert [len(inner.prompts) for inner in readers] == [1, 0, 0]
    assert [len(inner.requests) for inner in readers] == [1, 0, 0]


def test_invalid_requests_are_rejected(cache):
    reader = CachedReader(ScriptedReader(), cache)
    with pytest.raises(InputError, match="stop: expected a list of texts, got 'END'"):
        reader.generate(["x"], stop="END")
    with pytest.raises(InputError, match="prompts: expected a list, got 'hello'"):
        reader.generate("hello")


def test_samples_belong_to_their_call(cache):
    inner = ScriptedReader(lambda prompt, i: f"{prompt}{i}{len(inner.prompts)}")
    reader = CachedReader(inner, cache)
    options = {"n": 2, "temperature": 1.0}
    first = reader.generate(["a", "a"], **options)
    assert reader.generate(["a", "a"], **options) == first and len(inner.prompts) == 2
    reader.generate(["a"], **options)
    assert len(inner.prompts) == 3


def test_scores(cache):
    inner = ScriptedReader(score=lambda context, continuation: -float(len(context)))
    reader = CachedReader(inner, cache)
    assert [r.logprob for r in reader.loglikelihood([("ab", "x"), ("a", "x"), ("ab", "x")])] == [-2.0, -1.0, -2.0]
    assert [r.logprob for r in reader.loglikelihood([("a", "x"), ("abc", "x")])] == [-1.0, -3.0]
    assert inner.requests == [("ab", "x"), ("a", "x"), ("abc", "x")]


def test_a_tree_reader_returns_the_same_from_the_cache(cache, tiny_reader):
    pairs = [(tiny_reader.prompt(["Once upon"]), tiny_reader.continuation(t)) for t in ("a time", "a", "a time there")]
    direct = tiny_reader.score(pairs)
    reader = CachedReader(tiny_reader, cache)
    for _ in range(2):
        kept = reader.tree_reader().score(pairs)
        assert kept.logprob.tolist() == direct.logprob.tolist() and kept.is_greedy.tolist() == direct.is_greedy.tolist()
        assert [t.tolist() for t in kept.token_logprobs] == [t.tolist() for t in direct.token_logprobs]
        assert (kept.stats.total_tokens, kept.stats.computed_tokens) == (
            direct.stats.total_tokens,
            direct.stats.computed_tokens,
        )
    assert reader.total.run_tokens == direct.stats.computed_tokens  # once, not twice
    prompts = [tiny_reader.prompt([text]) for text in ("One two", "One three")]
    wanted = tiny_reader.generate(prompts, max_new_tokens=3)
    for _ in range(2):
        found = reader.generate(prompts, max_new_tokens=3)
        assert found == wanted
        assert (found.stats.total_tokens, found.stats.computed_tokens) != (0, 0)


def test_counts_do_not_depend_on_the_cache(cache, tiny_reader):
    prompts = [tiny_reader.prompt([text]) for text in ("One two", "One three")]
    fresh = CachedReader(tiny_reader, cache).generate(prompts, max_new_tokens=3).stats
    kept = CachedReader(tiny_reader, cache).generate(prompts, max_new_tokens=3).stats
    assert fresh == kept and fresh.total_tokens > fresh.computed_tokens > 0


def test_files_that_are_not_caches_and_readers_without_trees(tmp_path, cache):
    (tmp_path / "x").write_text("something else entirely, long enough to be read as a header of a database file " * 9)
    with pytest.raises(InputError, match="not a cache"):
        Cache(tmp_path / "x")
    with pytest.raises(InputError, match=r"expected one that plans and scores .*, got 'ScriptedReader'"):
        CachedReader(ScriptedReader(), cache).tree_reader()


def test_a_cache_that_cannot_be_used_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "cache.sqlite"
    with Cache(path) as cache:
        cache.put({"a": 1})
        path.unlink()
        with pytest.raises(OSError, match=r"cannot be used .*cache\.sqlite"):
            cache.put({"b": 2})
    with Cache(path) as cache:
        cache.put({"a": 1})
        cache._db.execute("UPDATE entries SET value = '{'")
        with pytest.raises(OSError, match=r"cannot be used .*cache\.sqlite"):
            cache.get(["a"])
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match=r"cache\.sqlite: not a cache \(not a regular file\)"):
        Cache(path)
