"""Attention of an answer's tokens against transformers' own attention matrices, and by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from helpers.support import byte_tokenizer, tiny_llama
from noise_cases import example, pool

from fastreader import Reader, noise
from fastreader.errors import InputError
from fastreader.models.attention_capture import attention_rows
from fastreader.noise import AnswerAttention, NoiseTemplate

ANSWERS = {
    "gold": " Lando",
    "random:3:near": " Lando Calrissian",
    "random:3:far": "x",
    "distracting:2:mid": " Han Solo",
}


@pytest.fixture(scope="module")
def materials():
    return noise.gather(example(), random=noise.DistractorPool(pool()), random_count=4)


def tiny_gemma2():
    """Grouped heads, a soft cap, and a window of 64 tokens in every second layer."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=261,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=64,
        attn_logit_softcapping=2.0,
        query_pre_attn_scalar=9,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    return Gemma2ForCausalLM(config).eval()


def by_transformers(model, reader, materials, name, answer, template):
    """Attention by passage, and entropy over the prompt, from the whole attention matrices of one sequence."""
    pieces = template.pieces(materials.question, noise.layout(materials, name).passages)
    prompt = reader.prompt(pieces, **template.options())
    spans = []
    for piece in pieces[2:-1]:  # numbered, so that none is part of another
        part = reader.encoder.piece(piece)
        at = next(i for i in range(len(prompt)) if prompt[i : i + len(part)] == part)
        spans.append((at, at + len(part)))
    tokens = reader.encoder.piece(answer)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        matrices = model(torch.tensor([prompt + tokens]), output_attentions=True).attentions
    attention, entropy = [], []
    for matrix in matrices:
        rows = matrix[0, :, len(prompt) :].double().numpy()  # [heads, answer, all]
        attention.append([rows[:, :, a:b].mean() for a, b in spans])
        over = rows[:, :, : len(prompt)]
        with np.errstate(all="ignore"):
            share = over / over.sum(-1, keepdims=True)
            terms = np.where(share > 0, -share * np.log(share), 0.0).sum(-1)
        seen = over.sum(-1) > 0
        entropy.append(terms[seen].mean() if seen.any() else np.nan)
    return np.array(attention), np.array(entropy), len(prompt), len(tokens)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("make", [tiny_llama, tiny_gemma2])
def test_tiny_models_against_transformers(make, chat, materials):
    reader = Reader.load((make(), byte_tokenizer(chat=True)), device="cpu", precision="exact")
    template = NoiseTemplate(chat=chat, instruction="Reply, or NO-RES.\n")
    taken = noise.answer_attention(reader, materials, ANSWERS, template=template)
    assert list(taken) == list(ANSWERS)
    for name, answer in ANSWERS.items():
        attention, entropy, prompt, tokens = by_transformers(make(), reader, materials, name, answer, template)
        np.testing.assert_allclose(taken[name].attention, attention, rtol=5e-5, atol=1e-9)
        np.testing.assert_allclose(taken[name].entropy, entropy, rtol=2e-5)
        assert (taken[name].prompt_tokens, taken[name].answer_tokens) == (prompt, tokens)


def test_the_packaged_reader_against_transformers(packaged_reader, packaged_model, materials):
    template = NoiseTemplate()
    taken = noise.answer_attention(packaged_reader, materials, ANSWERS)
    for name, answer in ANSWERS.items():
        attention, entropy, *_ = by_transformers(packaged_model, packaged_reader, materials, name, answer, template)
        assert attention.shape == (30, len(taken[name].kinds))
        np.testing.assert_allclose(taken[name].attention, attention, rtol=5e-5, atol=1e-9)
        np.testing.assert_allclose(taken[name].entropy, entropy, rtol=2e-5)


def test_the_split_into_passes_changes_nothing(tiny_reader, materials):
    template = NoiseTemplate(instruction="Reply, or NO-RES.\n")
    whole = noise.answer_attention(tiny_reader, materials, ANSWERS, template=template)
    parts = noise.answer_attention(tiny_reader, materials, ANSWERS, template=template, max_batch_tokens=600)
    for name in ANSWERS:
        np.testing.assert_allclose(whole[name].attention, parts[name].attention, rtol=1e-4)
        np.testing.assert_allclose(whole[name].entropy, parts[name].entropy, rtol=1e-5)


def test_rows_by_hand():
    """Equal keys: every row spreads evenly over what it sees, and its entropy is the log of how much that is."""
    rows = attention_rows(torch.ones(2, 4, 8), torch.ones(5, 2, 8), 1.0)
    assert rows.shape == (4, 2, 5)
    torch.testing.assert_close(rows[0], torch.tensor([[0.25, 0.25, 0.25, 0.25, 0], [0.2] * 5]))
    windowed = attention_rows(torch.ones(2, 4, 8), torch.ones(5, 2, 8), 1.0, window=2)
    torch.testing.assert_close(windowed[3], torch.tensor([[0, 0, 0.5, 0.5, 0], [0, 0, 0, 0.5, 0.5]]))


def test_grouped_heads_and_soft_cap_by_hand():
    """Heads 0 and 1 share the first key head. Scores of 3 and 0 capped at 1 are tanh(3) and 0."""
    query, key = torch.zeros(1, 4, 2), torch.zeros(2, 2, 2)
    query[0, :2, 0] = query[0, 2:, 1] = 3.0
    key[0, 0, 0] = 1.0  # token 0, first key head only
    capped = torch.tensor([np.tanh(3.0), 0.0], dtype=torch.float32).softmax(0)
    rows = attention_rows(query, key, 1.0, softcap=1.0)[:, 0]
    torch.testing.assert_close(rows, torch.stack([capped, capped, torch.full((2,), 0.5), torch.full((2,), 0.5)]))


def attention(entropy: list[float], tokens: int = 100, passages: int = 2) -> AnswerAttention:
    values = np.arange(1.0, 1 + len(entropy) * passages).reshape(len(entropy), passages)
    return AnswerAttention(values, np.array(entropy), tokens, 3, ("gold",) * passages)


def test_shares_and_entropies():
    a = attention([2.0, 4.0])
    np.testing.assert_allclose(a.share, [[1 / 3, 2 / 3], [3 / 7, 4 / 7]])
    np.testing.assert_allclose(a.normalised_entropy, [2 / np.log(100), 4 / np.log(100)])
    np.testing.assert_allclose(noise.mean_share([a, a]), a.share)
    rows = [{"gold": a, "random:1:near": attention([1.0, float("nan")])}, {"gold": attention([0.0, 2.0], 10)}]
    assert noise.mean_entropies(rows) == {"gold": [3.0, 1.0]}
    assert noise.mean_entropies(rows, normalised=True)["gold"][1] == pytest.approx(1 / np.log(10))
    assert noise.mean_entropies(rows[:1])["random:1:near"] == [1.0] and noise.mean_entropies([]) == {}


def test_a_layer_that_sees_no_passage_has_no_share():
    values = np.array([[1.0, 3.0], [0.0, 0.0]])
    blind = AnswerAttention(values, np.array([2.0, np.nan]), 100, 3, ("gold", "random"))
    np.testing.assert_array_equal(blind.share, [[0.25, 0.75], [np.nan, np.nan]])
    seeing = AnswerAttention(np.ones((2, 2)), np.array([2.0, 2.0]), 100, 3, ("gold", "random"))
    np.testing.assert_array_equal(noise.mean_share([blind, seeing]), [[0.375, 0.625], [0.5, 0.5]])
    np.testing.assert_array_equal(noise.mean_share([blind]), blind.share)


def test_rows_come_back_from_json():
    a = attention([2.0, float("nan")])
    back = AnswerAttention.from_dict(json.loads(json.dumps(a.to_dict(), allow_nan=False)))
    np.testing.assert_array_equal(back.attention, a.attention)
    np.testing.assert_array_equal(back.entropy, a.entropy)
    assert (back.prompt_tokens, back.answer_tokens, back.kinds) == (100, 3, ("gold", "gold"))


def test_figures(tmp_path):
    a = attention([2.0, 4.0])
    figure = noise.plot_heat_map({"gold": a.share}, {"gold": a.kinds}, tmp_path / "map.png")
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["gold", "gold"]
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), a.share)
    lines = noise.plot_entropy({"gold": [a, attention([4.0, 8.0])]}).axes[0].get_lines()
    assert list(lines[0].get_ydata()) == [3.0, 6.0]
    with pytest.raises(InputError, match="one kind per passage"):
        noise.plot_heat_map({"gold": a.share}, {"gold": ("gold",)})
    with pytest.raises(InputError, match=r"at least one answer each, got .*0"):
        noise.plot_entropy({"gold": []})
    for name in ("missing/plot.png", "plot.docx"):
        with pytest.raises(InputError, match=r"^path: "):
            noise.plot_entropy({"gold": [a]}, tmp_path / name)


def test_bad_input(tiny_reader, materials):
    with pytest.raises(InputError, match="layout 'closed_book': expected at least one passage"):
        noise.answer_attention(tiny_reader, materials, {"closed_book": "x"})
    with pytest.raises(InputError, match="answer of 'gold': expected at least one token, got ' '"):
        noise.answer_attention(tiny_reader, materials, {"gold": " "})
    with pytest.raises(InputError, match=r"mean_share: attentions: expected answers of one shape .* got \[\]"):
        noise.mean_share([])
    with pytest.raises(
        InputError, match=r"AnswerAttention.from_dict: entropy, prompt_tokens, answer_tokens, kinds missing in values"
    ):
        AnswerAttention.from_dict({"attention": []})
    assert noise.answer_attention(tiny_reader, materials, {}) == {}
