"""Writing as on a GPU, with Triton's kernels in the interpreter: the texts of the path that reads every step."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.support import byte_tokenizer, tiny_llama
from recorded import Graphs

from fastreader import Reader
from fastreader.core.options import StepOptions
from fastreader.core.protocol import Generation
from fastreader.errors import NumericsError
from fastreader.models.passes import cuda_graphs
from fastreader.models.passes.row_keys import RowKeys
from fastreader.models.tree_model import TreeModel
from fastreader.reader.generation import gpu_decoding

pytestmark = pytest.mark.interpreter
sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "gpu"))

RNG = np.random.default_rng(5)
SHARED = RNG.integers(5, 250, 12).tolist()
PROMPTS = [SHARED, [*SHARED, 7, 9, 11]]


@pytest.fixture(scope="module")
def there() -> Reader:
    """A reader whose model was made for a GPU. It runs within `pretended`."""
    from pretended import pretended

    reader = Reader.load((tiny_llama(num_key_value_heads=1), byte_tokenizer()), precision="exact", check="off")
    with pretended():
        reader.local_model._model = TreeModel(tiny_llama(num_key_value_heads=1), "tiny", "exact", "torch", own=True)
    return reader


def generated(
    reader: Reader, on_device: bool = False, prompts: list[list[int]] = PROMPTS, **options: Any
) -> list[Generation]:
    from pretended import pretended

    with pretended(kernels=None) if on_device else nullcontext():
        groups = reader.generate(prompts, progress=False, **options)
    return [each for group in groups for each in group]


def written(reader: Reader, on_device: bool = False, **options: Any) -> list[tuple[list[int], str]]:
    return [(each.token_ids, each.finish_reason) for each in generated(reader, on_device, **options)]


@pytest.fixture(scope="module")
def here() -> Reader:
    return Reader.load((tiny_llama(num_key_value_heads=1), byte_tokenizer()), precision="exact", check="off")


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the rows of every step on the device."""
    rows, launch = [], gpu_decoding.DeviceTexts._launch

    def count(self: gpu_decoding.DeviceTexts) -> None:
        rows.append(len(self._texts))
        launch(self)

    monkeypatch.setattr(gpu_decoding.DeviceTexts, "_launch", count)
    return rows


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 5},
        {"max_new_tokens": 5, "n": 2, "temperature": 1.5, "top_p": 0.7},
        {"max_new_tokens": 3, "n": 12, "temperature": 1.0, "prompts": [SHARED]},  # which tiles of texts read
    ],
    ids=str,
)
@pytest.mark.long(keep=2)
def test_texts(there: Reader, here: Reader, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_decoding, "_DRAWS", 2)
    rows = counted(monkeypatch)
    assert written(there, True, **options) == written(here, **options)
    assert len(rows) == options["max_new_tokens"] - 1


def test_ends(there: Reader, here: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts end by a token or a string. Finished rows leave when half of them are."""
    free = [tokens for tokens, _ in written(here, max_new_tokens=8)]
    text = here.encoder.text(free[1])
    rows = counted(monkeypatch)
    options = {"max_new_tokens": 8, "stop_token_ids": [free[0][2]], "stop": [text[1:3]]}
    got = written(there, True, **options)
    assert got == written(here, **options)
    assert {reason for _, reason in got} >= {"stop"}
    assert min(rows) < max(rows)


def test_log_probabilities(there: Reader, here: Reader) -> None:
    options = {"max_new_tokens": 4, "token_logprobs": True}
    for mine, eager in zip(generated(there, True, **options), generated(here, **options), strict=True):
        assert mine.token_logprobs == pytest.approx(eager.token_logprobs, abs=1e-5)


def test_most_likely_tokens_and_dropped_texts(there: Reader, here: Reader) -> None:
    from pretended import pretended

    options = StepOptions(max_new_tokens=6, token_logprobs=True, top_logprobs=3, progress=False)
    found = []
    for reader, on_device in ((there, True), (here, False)):
        with pretended(kernels=None) if on_device else nullcontext():
            steps = reader.generate_steps(PROMPTS, options)
            while True:
                try:
                    texts = next(steps)
                except StopIteration as end:
                    found.append([group[0] for group in end.value])
                    break
                if len(texts[1].tokens) == 3:
                    texts[1].finish_reason = "left"
    for mine, eager in zip(*found, strict=True):
        assert mine.token_ids == eager.token_ids
        for row, wanted in zip(mine.top_logprobs, eager.top_logprobs, strict=True):
            assert [token for token, _ in row] == [token for token, _ in wanted]
            assert [value for _, value in row] == pytest.approx([value for _, value in wanted], abs=1e-5)
    assert [len(text.token_ids) for text in found[0]] == [6, 3]


def test_recorded_steps_write_the_same(there: Reader, here: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Graphs()
    monkeypatch.setenv(cuda_graphs.VARIABLE, "1")
    monkeypatch.setattr(gpu_decoding, "recorder", lambda device: record)
    monkeypatch.setattr(gpu_decoding, "_FEWEST_REPLAYS", 1)
    monkeypatch.setattr(gpu_decoding, "_DRAWS", 3)
    options = {"max_new_tokens": 8, "n": 2, "temperature": 1.0, "seed": 1}
    ends = [written(here, **options)[0][0][4]]
    assert written(there, True, **options, stop_token_ids=ends) == written(here, **options, stop_token_ids=ends)
    assert record.recordings[0].replays >= 3


def test_weights_that_give_no_number_are_reported(there: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    states = TreeModel.states

    def broken(self: TreeModel, tokens: torch.Tensor, positions: torch.Tensor, keys: Any, *others: Any) -> torch.Tensor:
        found = states(self, tokens, positions, keys, *others)
        return found * float("nan") if isinstance(keys, RowKeys) else found

    monkeypatch.setattr(TreeModel, "states", broken)
    with pytest.raises(NumericsError, match="not finite"):
        generated(there, True, max_new_tokens=4)
