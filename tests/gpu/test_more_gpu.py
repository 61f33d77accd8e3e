"""What tests/gpu leaves out: owned weights (joined products), strided keys through descriptors, graphs recorded again."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from forests import attention_inputs, random_forest
from helpers.support import byte_tokenizer, one_by_one, random_sequences, tiny_llama
from tolerance import assert_as_exact_as_eager

from fastreader import Reader
from fastreader.models.passes.cuda_graphs import VARIABLE
from fastreader.ops.tree_attention import tree_attention

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
SEQUENCES = random_sequences(np.random.default_rng(1), 250)


def model_of(size: int, dtype: torch.dtype = torch.bfloat16):
    """Two layers with heads that descriptors load."""
    torch.manual_seed(0)
    model = tiny_llama(hidden_size=4 * size, head_dim=size, intermediate_size=3 * size)
    for parameter in model.parameters():  # not .to(dtype), which would round the rotary embedding's frequencies too
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    return model


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "size"), [((9, 3), 64), ((8, 2), 128), ((4, 4), 64), ((12, 1), 128)])
def test_views_of_queries_keys_and_values_side_by_side(heads, size, dtype, seed):
    inputs = attention_inputs(
        *random_forest(seed, 37 + 211 * seed, (0.01, 0.1, 0.5)[seed % 3]), dtype=dtype, heads=heads, size=size
    ).to("cuda")
    both = torch.cat([inputs.query, inputs.key, inputs.value], dim=1)
    query, key, value = both.split_with_sizes([heads[0], heads[1], heads[1]], dim=1)
    out, lse = tree_attention(
        query, key, value, inputs.subtree_end, scale=inputs.scale, plan=inputs.plan(), return_lse=True, impl="triton"
    )
    golden, golden_lse = inputs.golden()
    assert_as_exact_as_eager("output", out, inputs.eager(dtype)[0], golden)
    assert_as_exact_as_eager("lse", lse, inputs.eager(torch.float32)[1], golden_lse)


@pytest.mark.parametrize("what", ["sinks", "slopes", "chunk"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_terms(what, dtype):
    inputs = attention_inputs(*random_forest(3, 500), dtype=dtype, heads=(6, 2)).to("cuda")
    given = {"sinks": torch.randn(6, device="cuda"), "slopes": torch.rand(6, device="cuda") * 0.1, "chunk": 40}[what]
    arguments = {
        "query_positions": inputs.query_positions,
        "key_positions": inputs.key_positions,
        "scale": inputs.scale,
        what: given,
    }
    wide = {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in arguments.items()}
    operands = inputs.query, inputs.key, inputs.value
    got = tree_attention(*operands, inputs.subtree_end, return_lse=True, impl="triton", **arguments)
    want = tree_attention(
        *(x.double() for x in operands), inputs.subtree_end, return_lse=True, impl="reference", **wide
    )
    assert float((got[0].double() - want[0]).abs().max()) < (0.02 if dtype == torch.bfloat16 else 1e-5)
    assert float((got[1].double() - want[1]).abs().max()) < 1e-3


@pytest.mark.parametrize("size", [512, 576])
def test_latents(size):
    inputs = attention_inputs(
        *random_forest(size, 400), dtype=torch.bfloat16, heads=(16, 1), size=size, value_size=512
    ).to("cuda")
    out, _ = tree_attention(
        inputs.query, inputs.key, inputs.value, inputs.subtree_end, scale=inputs.scale, return_lse=True, impl="triton"
    )
    assert_as_exact_as_eager("output", out, inputs.eager(torch.bfloat16)[0], inputs.golden()[0])


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("precision", ["fast", "high", "exact"])
@pytest.mark.parametrize("graphs", ["0", "1"])
def test_owned_weights(size, precision, graphs, tmp_path, monkeypatch):
    """A model that the reader loads itself: joined products, nine launches a layer; also as CUDA graphs."""
    monkeypatch.setenv(VARIABLE, graphs)
    model = model_of(size)
    want = np.concatenate(one_by_one(copy.deepcopy(model).float(), SEQUENCES))
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    reader = Reader.load(tmp_path, device="cuda", precision=precision)
    assert reader.local_model.model.forward_path.startswith("fused (2 layer")
    for _ in range(4):  # eager, recorded, replayed twice
        got = np.concatenate(reader.score(SEQUENCES).token_logprobs)
        assert np.abs(got - want).max() < {"fast": 0.6, "high": 5e-3, "exact": 2e-4}[precision]
    assert graphs == "0" or reader.local_model.model.graphs._graphs


def test_a_tree_with_more_tiles_is_recorded_again(monkeypatch):
    """The bucket's only graph is dropped and its pool used again."""
    from fastreader.models.passes import pass_graphs
    from fastreader.ops import upload

    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.setattr(upload, "with_room", lambda rows: rows)
    reader = Reader.load((model_of(64).cuda(), byte_tokenizer()), precision="high")
    eager = Reader.load((model_of(64).cuda(), byte_tokenizer()), precision="high")
    eager.local_model.model.graphs = None
    rng = np.random.default_rng(0)
    made = []
    monkeypatch.setattr(
        pass_graphs._PassGraph,
        "record",
        (lambda record: lambda self, *a: made.append(1) or record(self, *a))(pass_graphs._PassGraph.record),
    )
    for seed in range(6):
        cuts = rng.integers(20, 60, 5)
        sequences = [(rng.integers(5, 250, int(n)).tolist(), [7, 9]) for n in cuts] + [
            (rng.integers(5, 250, 300 - int(cuts.sum())).tolist(), [8])
        ]
        got, want = (each.score(sequences).logprob for each in (reader, eager))
        np.testing.assert_allclose(got, want, atol=2e-3)
    assert len(made) > 1, "no tree needed another recording; the test shows nothing"


def test_steps_recorded_again_after_texts_leave(monkeypatch):
    prompts = [[5, 6, 7, 8 + i] for i in range(4)]
    options = {"max_new_tokens": 56, "n": 2, "temperature": 1.0, "seed": 3}
    reader = lambda: Reader.load((model_of(64, torch.float32).cuda(), byte_tokenizer()), precision="exact")  # noqa: E731
    free = [t.token_ids for group in reader().generate(prompts, **options) for t in group]
    end = {
        token: [ids.index(token) if token in ids else len(ids) for ids in free] for ids in free for token in ids[6:24]
    }
    chosen = [
        t for t, places in end.items() if sum(8 < p < 28 for p in places) >= 4 and sum(p > 50 for p in places) >= 1
    ]
    ends = chosen[:1] or list(end)[:3]
    monkeypatch.setenv(VARIABLE, "0")
    want = [t.token_ids for group in reader().generate(prompts, **options, stop_token_ids=ends) for t in group]
    monkeypatch.delenv(VARIABLE)
    from fastreader.models.passes import cuda_graphs as graphs

    made = []
    real = graphs.CudaGraph.__init__
    monkeypatch.setattr(graphs.CudaGraph, "__init__", lambda self, *a: made.append(1) or real(self, *a))
    got = [t.token_ids for group in reader().generate(prompts, **options, stop_token_ids=ends) for t in group]
    assert got == want
    assert len(made) > 1, f"recorded {len(made)} times; texts of {[len(ids) for ids in want]} tokens"


def test_threads_share_a_reader(monkeypatch):
    """One thread records while another reads results."""
    from concurrent.futures import ThreadPoolExecutor

    monkeypatch.setenv(VARIABLE, "1")
    reader = Reader.load((model_of(64).cuda(), byte_tokenizer()), precision="fast")
    rng = np.random.default_rng(2)
    calls = [[(rng.integers(5, 250, n).tolist(), [7, 9, 11])] * 3 for n in (50, 90, 150, 210) for _ in range(6)]
    want = [reader.score(call).logprob for call in calls]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda call: reader.score(call).logprob, calls))
    for mine, other in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, other, atol=0.02)
