"""Models that the reader loads itself: joined products and nine launches a layer, one by one and as CUDA graphs."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.support import byte_tokenizer, one_by_one, random_sequences, tiny_llama

from fastreader import Reader
from fastreader.models.passes import cuda_graphs, pass_graphs
from fastreader.ops import upload

pytestmark = pytest.mark.gpu
SEQUENCES = random_sequences(np.random.default_rng(1), 250)


def model_of(size: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    """Return a model of two layers with heads that descriptors load."""
    torch.manual_seed(0)
    model = tiny_llama(hidden_size=4 * size, head_dim=size, intermediate_size=3 * size)
    for parameter in model.parameters():  # not .to(dtype), which would round the rotary embedding's frequencies too
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    return model


def reader_of(size: int, precision: str, dtype: torch.dtype = torch.bfloat16) -> Reader:
    return Reader.load((model_of(size, dtype).cuda(), byte_tokenizer()), precision=precision)


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("precision", ["fast", "high", "exact"])
@pytest.mark.parametrize("graphs", ["0", "1"])
def test_scores(size: int, precision: str, graphs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cuda_graphs.VARIABLE, graphs)
    model = model_of(size)
    want = np.concatenate(one_by_one(copy.deepcopy(model).float(), SEQUENCES))
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    reader = Reader.load(tmp_path, device="cuda", precision=precision)
    assert reader.local_model.model.forward_path.startswith("fused (2 layer")
    for _ in range(4):  # launched, recorded, replayed twice
        got = np.concatenate(reader.score(SEQUENCES).token_logprobs)
        assert np.abs(got - want).max() < {"fast": 0.6, "high": 5e-3, "exact": 2e-4}[precision]
    assert graphs == "0" or reader.local_model.model.graphs._graphs


def test_a_tree_with_more_tiles_is_recorded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bucket's only graph is dropped and its pool used again."""
    monkeypatch.setattr(upload, "with_room", lambda rows: rows)
    reader, launched = reader_of(64, "high"), reader_of(64, "high")
    launched.local_model.model.graphs = None
    rng, recorded, record = np.random.default_rng(0), [], pass_graphs._PassGraph.record
    count = lambda self, *arguments: recorded.append(1) or record(self, *arguments)  # noqa: E731
    monkeypatch.setattr(pass_graphs._PassGraph, "record", count)
    for _ in range(6):
        cuts = rng.integers(20, 60, 5).tolist()
        sequences = [(rng.integers(5, 250, length).tolist(), [7, 9]) for length in cuts]
        sequences.append((rng.integers(5, 250, 300 - sum(cuts)).tolist(), [8]))
        got, want = (each.score(sequences).logprob for each in (reader, launched))
        np.testing.assert_allclose(got, want, atol=2e-3)
    assert len(recorded) > 1, "no tree needed another recording; the test shows nothing"


def test_steps_are_recorded_again_after_texts_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [[5, 6, 7, 8 + i] for i in range(4)]
    options = {"max_new_tokens": 56, "n": 2, "temperature": 1.0, "seed": 3}

    def texts(**more: Any) -> list[list[int]]:
        reader = reader_of(64, "exact", torch.float32)
        return [text.token_ids for group in reader.generate(prompts, **options, **more) for text in group]

    monkeypatch.setenv(cuda_graphs.VARIABLE, "0")
    free = texts()
    # A token that ends about half of the texts after recording has begun, and at least one of them late.
    first = {
        token: [ids.index(token) if token in ids else len(ids) for ids in free] for ids in free for token in ids[6:24]
    }
    chosen = [t for t, at in first.items() if sum(8 < p < 28 for p in at) >= 4 and sum(p > 50 for p in at) >= 1]
    ends = chosen[:1] or list(first)[:3]
    want = texts(stop_token_ids=ends)
    monkeypatch.delenv(cuda_graphs.VARIABLE)
    recorded, made = [], cuda_graphs.CudaGraph.__init__
    monkeypatch.setattr(
        cuda_graphs.CudaGraph, "__init__", lambda self, *given: recorded.append(1) or made(self, *given)
    )
    got = texts(stop_token_ids=ends)
    assert got == want
    assert len(recorded) > 1, f"recorded {len(recorded)} times; texts of {[len(ids) for ids in want]} tokens"


def test_threads_share_a_reader() -> None:
    """One thread records while another reads results."""
    reader = reader_of(64, "fast")
    rng = np.random.default_rng(2)
    calls = [[(rng.integers(5, 250, n).tolist(), [7, 9, 11])] * 3 for n in (50, 90, 150, 210) for _ in range(6)]
    want = [reader.score(call).logprob for call in calls]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda call: reader.score(call).logprob, calls))
    for mine, other in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, other, atol=0.02)
