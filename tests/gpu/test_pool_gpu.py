"""A reader on the second device, and a pool of one reader for each, launched one by one and as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers.families import tiny
from helpers.support import byte_tokenizer

from fastreader import Reader
from fastreader.models.passes.cuda_graphs import VARIABLE
from fastreader.reader.pool import ReaderPool

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    pytest.mark.parametrize("graphs", ["0", "1"]),
]
SEEDS = range(4)  # the first passes run before anything is recorded, the later ones replay
Saved = tuple[str, list[np.ndarray], list[int]]


def sequences_of(seed: int) -> list[tuple[list[int], list[int]]]:
    rng = np.random.default_rng(seed)
    return [(rng.integers(5, 250, 60).tolist(), rng.integers(5, 250, 3).tolist()) for _ in range(6)]


def scores(reader: Reader | ReaderPool, seed: int) -> np.ndarray:
    return np.concatenate(reader.score(sequences_of(seed)).token_logprobs)


def text(reader: Reader | ReaderPool) -> list[int]:
    return reader.generate([[5, 6, 7]], max_new_tokens=12)[0][0].token_ids


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A folder with a reader, and its scores and its text on the CPU."""
    folder = tmp_path_factory.mktemp("reader")
    tiny("Llama").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    here = Reader.load(folder, device="cpu", precision="exact")
    return str(folder), [scores(here, seed) for seed in SEEDS], text(here)


def alone(folder: str) -> Reader:
    return Reader.load(folder, device="cuda:1", precision="exact")


def pooled(folder: str) -> ReaderPool:
    return ReaderPool.load(folder, ["cuda:0", "cuda:1"], precision="exact")


@pytest.mark.parametrize("load", [alone, pooled])
def test_scores_and_texts_of_the_cpu(
    load: Callable[[str], Reader | ReaderPool], graphs: str, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pass has other tokens, so that a replay that returns an earlier pass's numbers is seen."""
    monkeypatch.setenv(VARIABLE, graphs)
    folder, want, written = saved
    reader = load(folder)
    for seed in SEEDS:
        np.testing.assert_allclose(scores(reader, seed), want[seed], atol=2e-4)
    assert text(reader) == written
