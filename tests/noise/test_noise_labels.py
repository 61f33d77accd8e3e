"""Kinds of passages, random sources and hard distractors on hand-made cases."""

from __future__ import annotations

import itertools

import pytest
from noise_cases import FIRST, GOLD, OTHER, SECOND, example, pool

from fastreader import noise
from fastreader.data import Example, Passage
from fastreader.errors import InputError
from fastreader.noise import Kind
from fastreader.noise.hard import question_word, shape
from fastreader.statistics.measures.answers import contained


def test_kinds():
    """Gold by flag, relevant by a normalised answer. All other retrieved passages are distracting."""
    assert noise.label(example()) == [Kind.DISTRACTING, Kind.GOLD, Kind.RELEVANT, Kind.DISTRACTING]


def test_the_flag_has_answer_of_a_file_is_ignored_but_the_title_counts():
    said = Passage("Nothing here.", "Some title", has_answer=True)
    titled = Passage("A gambler.", "LANDO  Calrissian!", has_answer=False)
    assert noise.label(example(passages=[said, titled])) == [Kind.DISTRACTING, Kind.RELEVANT]


def test_without_answers_there_are_no_kinds():
    with pytest.raises(InputError, match="answers of 'q1': expected at least one"):
        noise.label(example(answers=[]))


def test_gather_puts_every_passage_in_one_place():
    m = noise.gather(
        example(passages=[FIRST, GOLD, FIRST, OTHER, SECOND]), random=noise.DistractorPool(pool()), random_count=5
    )
    assert m.retrieved == (FIRST, GOLD, OTHER, SECOND)
    assert (m.gold, m.relevant, m.distracting) == (GOLD, (OTHER,), (FIRST, SECOND))
    assert len({p.id for p in m.random}) == 5 and all(p.id.isdigit() for p in m.random)
    assert m.id == "q1" and m.cluster == noise.gather(example(id="q2", passages=[GOLD])).cluster
    assert noise.gather(example(passages=[FIRST])).cluster is None


def test_a_repeated_passage_is_gold_if_one_of_the_two_is():
    unflagged = Passage(GOLD.text, GOLD.title)
    m = noise.gather(example(passages=[unflagged, GOLD]))
    assert m.kinds == (Kind.GOLD,) and m.gold == unflagged


class TestSources:
    def test_a_pool_draws_unrelated_passages_without_repeats(self):
        mixed = [GOLD, FIRST, *pool(10), Passage("Lando Calrissian again."), *pool(10)]
        m = noise.gather(example(), random=noise.DistractorPool(mixed), random_count=10)
        assert sorted(p.id for p in m.random) == sorted(str(i) for i in range(10))

    def test_a_shorter_draw_is_the_beginning_of_a_longer_one(self):
        for source in (noise.DistractorPool(pool(), seed=3), noise.RandomWords.of(pool(), seed=3)):
            long = source.draw(12, "q", lambda p: True)
            assert source.draw(5, "q", lambda p: True) == long[:5]
            assert source.draw(12, "other", lambda p: True) != long
            assert (
                type(source)(getattr(source, "passages", None) or source.vocabulary).draw(12, "q", lambda p: True)
                != long
            )

    def test_every_passage_of_a_pool_is_as_likely(self):
        """3,000 draws of one out of 10: each about 300 times."""
        source = noise.DistractorPool(pool(10))
        counts = dict.fromkeys(map(str, range(10)), 0)
        for i in range(3000):
            counts[source.draw(1, str(i), lambda p: True)[0].id] += 1
        assert all(abs(count - 300) < 75 for count in counts.values())

    def test_all_of_a_pool(self):
        assert len({p.id for p in noise.DistractorPool(pool(30)).draw(30, "q", lambda p: True)}) == 30

    def test_random_words(self):
        words = noise.RandomWords(["red", "green", "blue"], length=50)
        drawn = words.draw(3, "q", lambda p: True)
        assert [len(p.text.split()) for p in drawn] == [50, 50, 50]
        assert {w for p in drawn for w in p.text.split()} == {"red", "green", "blue"}

    def test_bad_input(self):
        with pytest.raises(InputError, match="expected 40 random passages for 'q1', but only 30 of 30"):
            noise.gather(example(), random=noise.DistractorPool(pool()), random_count=40)
        with pytest.raises(InputError, match="in a row hold an answer to 'q'"):
            noise.RandomWords(["a"]).draw(1, "q", lambda p: False)
        with pytest.raises(InputError, match=r"RandomWords.vocabulary: expected at least one word, got \[\]"):
            noise.RandomWords([])


class TestHard:
    def test_every_spelling_of_an_answer_is_replaced(self):
        passage = Passage(
            "LANDO  CALRISSIAN (Lando-Calrissian) sold it. Landos stay, and so does Orlando Calrissian.",
            "Lando Calrissian's ship",
        )
        swapped = noise.swap_answer(passage, ["Lando Calrissian", "Lando"], "Boba Fett")
        assert swapped is None  # "Landos" and "Orlando" hold the answer "Lando"
        swapped = noise.swap_answer(
            Passage("LANDO  CALRISSIAN (Lando-Calrissian) sold it.", "Lando Calrissian's ship"),
            ["Lando Calrissian"],
            "Boba Fett",
        )
        assert swapped.text == "Boba Fett (Boba Fett) sold it."
        assert swapped.metadata == {"swapped": "Boba Fett"}

    def test_articles_and_punctuation_inside(self):
        passage = Passage("It was Louis the XIV., king of France, in the U.S.A. and the US.")
        assert noise.swap_answer(passage, ["louis XIV"], "X").text == (
            "It was X., king of France, in the U.S.A. and the US."
        )
        assert noise.swap_answer(passage, ["the USA"], "X").text == (
            "It was Louis the XIV., king of France, in the X. and the US."
        )

    @pytest.mark.parametrize(("answers", "replacement"), [(["Darth"], "X"), (["..."], "X"), (["Lando"], "Lando Two")])
    def test_nothing_to_swap(self, answers, replacement):
        assert noise.swap_answer(GOLD, answers, replacement) is None

    def test_a_replacement_is_plain_text(self):
        assert noise.swap_answer(GOLD, ["Lando Calrissian"], r"\1 {x}").text.count(r"\1 {x}") == 1

    def test_shapes(self):
        cases = {"1999": "year", "May 18, 2018": "date", "20%": "number", "Roy Orbison": "name", "at birth": "phrase"}
        assert {answer: shape(answer) for answer in cases} == cases

    def test_question_words(self):
        assert question_word("The ship, who owned it?") == "who"
        assert question_word("how many legs has a spider") == "how many"
        assert question_word("name a colour") == ""

    def test_like_replaces_like(self):
        others = [
            Example("who sang it", [], ["Roy Orbison"]),
            Example("where is it", [], ["Tokyo Bay"]),
            Example("when was it", [], ["1999"]),
            Example("who flew it", [], ["Lando Calrissian II"]),
            Example("who knows", []),
        ]
        swaps = list(noise.swapped_passages(GOLD, "who owned it", ["Lando Calrissian"], others, key="q"))
        assert [p.metadata["swapped"] for p in swaps] == ["Roy Orbison", "Tokyo Bay"]
        assert not any(contained(p.text, ["Lando Calrissian"]) for p in swaps)
        assert all(p.is_gold is None and p.score is None for p in swaps)

    def test_gather_mixes_swaps_and_passages_of_the_same_title(self):
        related = Passage("It made the Kessel run.", "Millennium Falcon", "t1")
        giveaway = Passage("Lando Calrissian flew it once more.", "Millennium Falcon", "t2")
        others = [Example(f"who is {name}", [], [name]) for name in ("Boba Fett", "Greedo", "Dengar")]
        pools = {"random": noise.DistractorPool([related, *pool()]), "random_count": 4}
        titles = noise.by_title([GOLD, SECOND, related, giveaway])
        m = noise.gather(example(), titles=titles, others=others, hard_count=3, **pools)
        assert [p.id == "t1" for p in m.hard] == [False, True, False]
        assert len({p.text for p in m.hard}) == 3
        assert m.random == noise.gather(example(), **pools).random  # whatever other layouts a study has

    def test_seed(self):
        others = [Example(f"who {i}", [], [f"Name {chr(65 + i)}"]) for i in range(10)]
        swaps = [
            [p.text for p in noise.swapped_passages(GOLD, "who?", ["Lando Calrissian"], others, key="q", seed=seed)]
            for seed in (0, 0, 1)
        ]
        assert swaps[0] == swaps[1] != swaps[2]
        assert all(len(s) == 10 for s in swaps) and len(set(itertools.chain(*swaps))) == 10
