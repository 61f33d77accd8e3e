"""Baselines that ask the reader: pairwise, listwise, self-consistency. A reader of rules answers."""

from __future__ import annotations

import itertools
import re
from functools import cache

import numpy as np
import pytest
from helpers.scripted import ScriptedReader
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from fastreader import Passage
from fastreader.errors import InputError, MissingExtraError
from fastreader.moi.baselines import METHODS, ListwisePrompt, PairwisePrompt, cross_encoder, self_consistency
from fastreader.moi.baselines.aggregate import borda, kemeny, preferences
from fastreader.moi.baselines.consistency import majority
from fastreader.moi.baselines.listwise import Parsed, parse_permutation
from fastreader.moi.baselines.pairwise import consistent, wins

WORTH = {"alpha": 1.0, "bravo": 4.0, "carol": 2.0, "delta": 3.0}
PASSAGES = [Passage(f"says {word}") for word in WORTH]
BEST_FIRST = [1, 3, 2, 0]


def worths(prompt):
    return [WORTH[w] for w in re.findall("alpha|bravo|carol|delta", prompt)]


def judge(context, label):
    """Nats of a label: the worth of its passage, and 0.5 for standing first."""
    a, b = worths(context)
    return a + 0.5 if label.endswith("A") else b


def test_pairwise():
    reader = ScriptedReader(score=judge)
    found = METHODS["pairwise"](reader, "which?", PASSAGES)
    assert found.order == BEST_FIRST
    assert found.scores.tolist() == [0.0, 3.0, 1.0, 2.0]
    assert found.details == {"aggregate": "wins", "consistent": 1.0}
    assert len(reader.requests) == 4 * 3 * 2
    assert all("which?" in context for context, _ in reader.requests)
    margin = METHODS["pairwise"](reader, "which?", PASSAGES, aggregate="margin")
    np.testing.assert_allclose(margin.scores, [(4 * w - 10) / 3 for w in WORTH.values()])


def test_pairwise_place_wins_over_worth():
    """A judge that only sees the place: every pair disagrees with its reverse, all passages tie."""
    found = METHODS["pairwise"](ScriptedReader(score=lambda c, t: float(t.endswith("A"))), "q", PASSAGES)
    assert found.scores.tolist() == [1.5] * 4
    assert found.order == [0, 1, 2, 3]
    assert found.details["consistent"] == 0.0


def test_wins_by_hand():
    margin = np.array([[0.0, 1.0, -2.0], [-1.0, 0.0, 3.0], [2.0, 1.0, 0.0]])
    # 0 beats 1 both ways; 0 and 2: 2 wins both ways; 1 and 2: the orders disagree.
    assert wins(margin).tolist() == [1.0, 0.5, 1.5]
    assert consistent(margin) == pytest.approx(2 / 3)


def test_pairwise_texts_and_bad_aggregate():
    reader = ScriptedReader(score=lambda c, t: float(t == "one"))
    texts = PairwisePrompt(
        instruction="{question}?",
        first="1 {passage}",
        second="2 {passage}",
        ask="!",
        first_label="one",
        second_label="two",
    )
    METHODS["pairwise"](reader, "q", PASSAGES[:2], prompt=texts)
    assert reader.requests[0] == ("q?1 says alpha2 says bravo!", "one")
    with pytest.raises(InputError, match="wins, margin"):
        METHODS["pairwise"](reader, "q", PASSAGES, aggregate="sum")


@pytest.mark.parametrize(
    ("text", "n", "parsed"),
    [
        ("[2] > [1] > [3]", 3, Parsed([1, 0, 2], 0, 0)),
        ("2 > 1", 3, Parsed([1, 0], 0, 0)),
        ("The 3 best passages: [ 2 ], [1].", 3, Parsed([1, 0], 0, 0)),
        ("[2] > [2] > [7] > [0]", 3, Parsed([1], 1, 2)),
        ("no idea", 3, Parsed([], 0, 0)),
        ("[1", 3, Parsed([0], 0, 0)),
        ("", 1, Parsed([], 0, 0)),
    ],
)  # fmt: skip
def test_parse_permutation(text, n, parsed):
    assert parse_permutation(text, n) == parsed


@given(st.text(alphabet="[]0123456789 >,a", max_size=40), st.integers(1, 12))
def test_a_parsed_permutation_always_completes(text, n):
    parsed = parse_permutation(text, n)
    assert sorted(parsed.complete(n)) == list(range(n))
    assert len(set(parsed.named)) == len(parsed.named)


def ranker(prompt, i=0):
    """Ranks the numbered passages by worth."""
    numbered = re.findall(r"\[(\d+)\] says (\w+)", prompt)
    return " > ".join(f"[{n}]" for n, w in sorted(numbered, key=lambda x: -WORTH[x[1]]))


def test_listwise():
    reader = ScriptedReader(write=ranker)
    found = METHODS["rankgpt"](reader, "which?", PASSAGES)
    assert found.order == BEST_FIRST
    assert found.scores.tolist() == [0.0, 3.0, 1.0, 2.0]
    assert found.details == {"asked": 4, "named": 4, "repeated": 0, "unknown": 0}
    assert len(reader.prompts) == 1
    assert "[1] says alpha" in reader.prompts[0]
    assert reader.prompts[0].count("which?") == 2


def test_listwise_windows():
    """From the end, a window of two moving by one carries the best to the front, as one pass of bubble sort."""
    reader = ScriptedReader(write=ranker)
    found = METHODS["rankgpt"](reader, "q", PASSAGES, window=2, step=1)
    assert found.order == [1, 0, 3, 2]
    assert len(reader.prompts) == 3
    with pytest.raises(InputError, match="step: expected an integer from 1 to 2, got 3"):
        METHODS["rankgpt"](reader, "q", PASSAGES, window=2, step=3)


def test_listwise_without_an_answer_keeps_the_order():
    found = METHODS["rankgpt"](ScriptedReader(write=lambda p, i: "I cannot."), "q", PASSAGES)
    assert found.order == [0, 1, 2, 3]
    assert found.details["named"] == 0
    assert METHODS["rankgpt"](ScriptedReader(), "q", PASSAGES[:1]).order == [0]


def test_listwise_texts():
    reader = ScriptedReader(write=lambda p, i: "2 1")
    texts = ListwisePrompt(instruction="{count}:{question}\n", passage="{number}={passage}\n", ask="go", words=1)
    METHODS["rankgpt"](reader, " q ", PASSAGES[:2], prompt=texts)
    assert reader.prompts == ["2:q\n1=says\n2=says\ngo"]


@pytest.mark.parametrize("aggregate", ["kemeny", "borda"])
def test_permutation_self_consistency(aggregate):
    """A ranker that swaps the first two it reads is wrong in single shuffles and right on the whole."""

    def write(prompt, i):
        words = re.findall(r"\[(\d+)\] says (\w+)", prompt)
        order = sorted(words, key=lambda x: -WORTH[x[1]] + (1.2 if x == words[0] else 0))
        return " > ".join(f"[{n}]" for n, _ in order)

    reader = ScriptedReader(write=write)
    found = METHODS["permutation-self-consistency"](reader, "q", PASSAGES, count=24, aggregate=aggregate)
    assert found.order == BEST_FIRST
    assert len(set(reader.prompts)) == 24
    assert found.details == {"shuffles": 24, "named": 96, "asked": 96}
    assert any(METHODS["rankgpt"](reader, "q", [PASSAGES[p] for p in o]).order != np.argsort(
        [-list(WORTH.values())[p] for p in o]).tolist() for o in itertools.permutations(range(4)))  # fmt: skip


def test_permutation_self_consistency_takes_n_factorial_at_most():
    reader = ScriptedReader(write=ranker)
    METHODS["permutation-self-consistency"](reader, "q", PASSAGES[:3], count=50)
    assert len(reader.prompts) == 6
    for bad in ({"aggregate": "mean"}, {"count": 0}):
        with pytest.raises(InputError):
            METHODS["permutation-self-consistency"](reader, "q", PASSAGES, **bad)


@cache
def inversions(places):
    n = len(places)
    return (1 - kendalltau(places, range(n)).statistic) / 2 * n * (n - 1) / 2


def disagreements(order, rankings):
    """Kendall distance by SciPy's tau, over whole rankings: of the places in one, by the places in the other."""
    place = np.argsort(order)
    return sum(inversions(tuple(place[r].tolist())) for r in rankings)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.permutations(range(5)), min_size=1, max_size=6))
def test_kemeny_is_the_best_of_all_orders(rankings):
    best = min(disagreements(o, rankings) for o in itertools.permutations(range(5)))
    assert disagreements(kemeny(rankings, 5), rankings) == pytest.approx(best)


def test_kemeny_of_two():
    assert kemeny([[0, 1], [1, 0], [1, 0]], 2) == [1, 0] and kemeny([], 2) == [0, 1] and kemeny([[0]], 1) == [0]


def test_kemeny_by_hand():
    assert kemeny([[0, 1, 2], [1, 2, 0], [1, 0, 2]], 3) == [1, 0, 2]
    assert kemeny([], 4) == [0, 1, 2, 3]  # nothing said: the retriever's order
    assert kemeny([[2, 1, 0], [0, 1, 2]], 3) == [0, 1, 2]  # a tie
    assert kemeny([[3], [3, 1]], 4) == [3, 1, 0, 2]
    assert kemeny([list(range(20))[::-1]] * 2, 20) == list(range(20))[::-1]


def test_borda_by_hand():
    assert borda([[0, 1, 2], [2, 0, 1]], 3).tolist() == [1.5, 0.5, 1.0]
    assert borda([[1]], 3).tolist() == [0.5, 2.0, 0.5]  # those not named share what is left
    assert preferences([[1]], 3).tolist() == [[0, 0, 0], [1, 0, 1], [0, 0, 0]]
    with pytest.raises(InputError, match="distinct items"):
        preferences([[1, 1]], 3)


def test_majority():
    assert majority(["The Nile.", "Seine", "nile", ""]) == ("The Nile.", 0.5)
    assert majority(["b", "a", "A", "B"]) == ("b", 0.5)  # ties to the first
    assert majority(["...", ""]) == ("", 0.0)
    with pytest.raises(InputError, match="at least one"):
        majority([])


def test_self_consistency(tiny_reader, monkeypatch):
    """Every order is read once in one call. The answer most of them give wins."""
    from fastreader.core.protocol import Generation, Results
    from fastreader.core.tree import TreeStats

    asked = []

    def generate(prompts, **options):
        asked.append((list(prompts), options))
        texts = [tiny_reader.encoder.tokenizer.decode(p) for p in asked[-1][0]]
        answers = ["The Nile" if t.index("alpha") < t.index("bravo") else f"no {i}" for i, t in enumerate(texts)]
        return Results([[Generation(a, [], "eos", 1)] for a in answers], TreeStats(6, 60, 30, 0))

    monkeypatch.setattr(tiny_reader, "generate", generate, raising=False)
    vote = self_consistency(tiny_reader, "q", PASSAGES[:3], count=30, max_new_tokens=7)
    assert (vote.answer, vote.share) == ("The Nile", 0.5)
    assert sorted(vote.orders) == [list(o) for o in itertools.permutations(range(3))]
    ((prompts, options),) = asked
    assert len(prompts) == 6
    assert options["max_new_tokens"] == 7
    assert options["stop"] == ("\n",)  # as every other reading ends
    assert vote.to_dict()["stats"]["computed_tokens"] == 30


def test_reading_prompts_are_the_contexts_that_are_scored(tiny_reader):
    from fastreader import score_permutations
    from fastreader.scoring.reading import reading_prompts

    orders = [[1, 0], [0, 1]]
    scores = score_permutations(tiny_reader, "q", PASSAGES[:2], ["Nile"], orders)
    prompts = reading_prompts(tiny_reader, "q", PASSAGES[:2], orders)
    answer = tiny_reader.continuation("Nile", end=True)
    again = tiny_reader.loglikelihood([(prompt, answer) for prompt in prompts])
    np.testing.assert_allclose([r.logprob for r in again], scores.logprobs[:, 0], atol=1e-9)


def test_cross_encoder_of_its_own_making(tmp_path):
    """A tiny random BERT, saved as a cross-encoder: scores equal its own forward's."""
    sentence_transformers = pytest.importorskip(
        "sentence_transformers", reason="the extra 'cross-encoder' is not installed"
    )
    import torch
    import transformers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "says", "which", *WORTH]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = transformers.BertTokenizerFast(vocab={w: i for i, w in enumerate(words)})
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        num_labels=1, initializer_range=0.5,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = METHODS["cross-encoder"](None, "which", PASSAGES, model=str(tmp_path))
    with torch.no_grad():
        batch = tokenizer(["which"] * 4, [p.text for p in PASSAGES], return_tensors="pt", padding=True)
        logits = model(**batch).logits[:, 0].numpy()
    activation = sentence_transformers.CrossEncoder(str(tmp_path)).activation_fn
    np.testing.assert_allclose(found.scores, activation(torch.from_numpy(logits)).numpy(), atol=1e-5)
    assert found.order == np.argsort(-logits, kind="stable").tolist()


def test_cross_encoder_errors(monkeypatch):
    class Two:
        def predict(self, pairs, **options):
            return np.zeros((len(pairs), 2))

    with pytest.raises(InputError, match="model: expected one finite score"):
        cross_encoder(None, "q", PASSAGES, model=Two())
    with pytest.raises(InputError, match="needs model"):
        METHODS["cross-encoder"](None, "q", PASSAGES)
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match="the extra cross-encoder of fastreader"):
        cross_encoder(None, "q", PASSAGES, model="a name that is not loaded yet")
