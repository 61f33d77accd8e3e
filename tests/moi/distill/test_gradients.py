"""The packed pass's gradients against autograd on dense masks, and on one sequence at a time through transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from helpers.support import byte_tokenizer, tiny_llama

from fastreader.core.tree import PrefixTree
from fastreader.models.passes.packed_keys import AttentionParams
from fastreader.moi.distill.evaluation import kl_loss
from fastreader.moi.distill.gradients import GradientKeys, logprobs
from fastreader.ops.tree_attention import AttentionPlan
from fastreader.ops.tree_attention.plan import AttentionContext
from fastreader.ops.tree_attention.reference import tree_attention_reference

peft = pytest.importorskip("peft", reason="the student's adapters come from PEFT: pip install 'fastreader[distill]'")

from fastreader.moi.distill import LoraSettings, Student  # noqa: E402


def a_tree(rng, longest=30, count=6):
    from helpers.support import random_sequences

    return PrefixTree.build(random_sequences(rng, 20, count, longest))


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (5, None), (None, 2.0), (7, 1.5)])
@pytest.mark.parametrize("heads", [(4, 2), (3, 1)])
def test_attention_and_its_gradient(window, softcap, heads):
    tree = a_tree(np.random.default_rng(3))
    keys = GradientKeys(tree, torch.device("cpu"))
    count = len(tree)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(count, h, 8, dtype=torch.float64, generator=generator, requires_grad=True)
        for h in (heads[0], heads[1], heads[1])
    )
    weight = torch.randn(count, heads[0], 8, dtype=torch.float64, generator=generator)
    out = keys.attend(0, query, key, value, AttentionParams(0.3, window, softcap, None))
    plan = AttentionPlan(tree.subtree_end, None, tree.positions, tree.positions)
    nodes = keys.subtree_end, torch.arange(count), keys.positions, keys.positions
    want, _ = tree_attention_reference(AttentionContext(query, key, value, *nodes, plan, 0.3, window, softcap))
    torch.testing.assert_close(out, want, atol=1e-12, rtol=1e-12)
    got = torch.autograd.grad((out * weight).sum(), (query, key, value))
    dense = torch.autograd.grad((want * weight).sum(), (query, key, value))
    for a, b in zip(got, dense, strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11)


def test_attention_gradient_by_differences():
    tree = a_tree(np.random.default_rng(1), longest=8, count=3)
    keys = GradientKeys(tree, torch.device("cpu"))
    tensors = [torch.randn(len(tree), 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(
        lambda q, k, v: keys.attend(0, q, k, v, AttentionParams(0.5, 4, 3.0, None)), tensors
    )


@pytest.mark.parametrize(("scale", "softcap", "biased"), [(1.0, None, False), (0.25, 3.0, True)])
def test_head(scale, softcap, biased):
    torch.manual_seed(0)
    hidden = torch.randn(600, 5, dtype=torch.float64, requires_grad=True)  # more rows than one block
    weight, bias = torch.randn(11, 5, dtype=torch.float64), torch.randn(11, dtype=torch.float64) if biased else None
    target = torch.randint(0, 11, (600,))
    logits = hidden @ weight.T
    logits = (logits if bias is None else logits + bias) * scale
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    want = logits.log_softmax(-1)[torch.arange(600), target]
    got = logprobs(hidden, weight, target, bias, scale, softcap)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad((x * torch.arange(600)).sum(), hidden)[0] for x in (got, want)))


def gemma2(dtype):
    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        vocab_size=261, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, sliding_window=7,
        layer_types=["sliding_attention", "full_attention"], attn_logit_softcapping=5.0, final_logit_softcapping=3.0,
        bos_token_id=0, eos_token_id=1, pad_token_id=1, initializer_range=0.2,
    )  # fmt: skip
    return transformers.Gemma2ForCausalLM(config).to(dtype).eval()


def shaken(student):
    """LoRA starts with B = 0, where A has no gradient: give both something."""
    torch.manual_seed(5)
    with torch.no_grad():
        for p in student.parameters():
            p.copy_(0.1 * torch.randn_like(p))
    return student


def orderings(rng, count=4):
    """`count` orderings of three passages with a header and a question, as (context, continuation) pairs."""
    header, question = rng.integers(2, 261, 6).tolist(), rng.integers(2, 261, 5).tolist()
    passages = [rng.integers(2, 261, n).tolist() for n in (9, 14, 11)]
    orders = [rng.permutation(3) for _ in range(count)]
    return [(header + [t for p in order for t in passages[p]], question) for order in orders]


def one_at_a_time(student, sequences):
    """Scores [S] by transformers' own attention and head, a forward a sequence, with gradients."""
    student.model.config._attn_implementation = "eager"
    out = []
    for context, continuation in sequences:
        ids = torch.tensor([context + continuation])
        logits = student.model(input_ids=ids, use_cache=False).logits[0, len(context) - 1 : -1]
        wide = logits.double() if logits.dtype == torch.float64 else logits.float()
        out.append(wide.log_softmax(-1).gather(1, ids[0, len(context) :, None]).sum())
    student.model.config._attn_implementation = "fastreader_tree"
    return torch.stack(out)


def gradients(student, scores):
    teacher = torch.linspace(-2, 3, len(scores), dtype=scores.dtype)
    return torch.autograd.grad(kl_loss(teacher, scores, 1.3), student.parameters())


@pytest.mark.parametrize(
    ("make", "dtype", "tolerance"),
    # transformers' norms and rotary embeddings round to float32 in a float64 model too, hence not 1e-12
    [(lambda d: tiny_llama().to(d), torch.float64, 1e-6), (lambda d: tiny_llama().to(d), torch.float32, 2e-4),
     (gemma2, torch.float64, 1e-6)],
)  # fmt: skip
def test_gradients_equal_one_sequence_at_a_time(make, dtype, tolerance):
    student = shaken(Student.load((make(dtype), byte_tokenizer())))
    sequences = orderings(np.random.default_rng(0))
    packed, stats = student.loglikelihood(sequences)
    alone = one_at_a_time(student, sequences)
    assert stats.computed_tokens < stats.total_tokens
    torch.testing.assert_close(packed.to(dtype), alone, atol=10 * tolerance, rtol=tolerance)
    got, want = gradients(student, packed), gradients(student, alone)
    largest = max(float(w.abs().max()) for w in want)
    assert largest > 1e-3
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance * largest, rtol=tolerance)


def test_one_forward_for_all_orderings():
    student = Student.load((tiny_llama(), byte_tokenizer()))
    calls = []
    student.model.base_model.register_forward_hook(lambda *_: calls.append(1))
    scores, _ = student.loglikelihood(orderings(np.random.default_rng(0), 6))
    gradients(student, scores)
    assert len(scores) == 6
    assert len(calls) == 1


def test_gradient_checkpointing_changes_nothing():
    student = shaken(Student.load((tiny_llama().double(), byte_tokenizer()), lora=LoraSettings(dropout=0.0)))
    sequences = orderings(np.random.default_rng(0))
    student.train(True)
    plain = gradients(student, student.loglikelihood(sequences)[0])
    student.train(True, gradient_checkpointing=True)
    again = []
    student.model.base_model.layers[0].mlp.register_forward_pre_hook(lambda *_: again.append(1))
    kept = gradients(student, student.loglikelihood(sequences)[0])
    assert len(again) == 2  # forward, and once more in the backward pass
    for a, b in zip(plain, kept, strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=1e-12)
