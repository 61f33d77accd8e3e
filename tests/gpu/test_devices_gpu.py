"""Layers on several devices: two GPUs, and a GPU with the CPU."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.families import tiny
from helpers.support import byte_tokenizer, one_by_one, random_sequences
from transformers import AutoModelForCausalLM

from fastreader import Reader

pytestmark = pytest.mark.gpu
SEQUENCES = random_sequences(np.random.default_rng(1), 261)
SECOND = pytest.param(
    "cuda:1", marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
)


@pytest.mark.parametrize("second", [SECOND, "cpu"])
@pytest.mark.parametrize("family", ["Llama", "Gemma2, window, caps", "Mixtral", "GPT2"])
def test_layers_on_two_devices(family: str, second: str, tmp_path: Path) -> None:
    """Named, and given as accelerate dispatches it."""
    import accelerate

    model = tiny(family)
    eager = AutoModelForCausalLM.from_config(model.config, attn_implementation="eager")  # SDPA has no soft cap
    eager.load_state_dict(model.state_dict())
    want = np.concatenate(one_by_one(eager.eval(), SEQUENCES))
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    stack = next(name for name, part in model.named_modules() if isinstance(part, torch.nn.ModuleList))
    parts = {name: "cuda:0" for name, part in model.named_modules() if name and not list(part.children())}
    parts = {name: place for name, place in parts.items() if not name.startswith(f"{stack}.")}
    parts |= {f"{stack}.{layer}": second if layer else "cuda:0" for layer in range(3)}
    given = accelerate.dispatch_model(copy.deepcopy(model), parts)
    alone = Reader.load((model, byte_tokenizer()), precision="exact")
    for reader in (
        Reader.load(tmp_path, precision="exact", device_map=parts),
        Reader.load((given, byte_tokenizer()), precision="exact"),
    ):
        assert set(reader.describe()["device"].split(" + ")) == {"cuda:0", second}
        np.testing.assert_allclose(np.concatenate(reader.score(SEQUENCES).token_logprobs), want, atol=2e-4)
        texts = [[row[0].token_ids for row in one.generate([[5, 6, 7]], max_new_tokens=12)] for one in (reader, alone)]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("device_map", ["auto", "balanced", "sequential"])
def test_maps_by_name(device_map: str, tmp_path: Path) -> None:
    model = tiny("Llama")
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    got = Reader.load(tmp_path, precision="exact", device_map=device_map).score(SEQUENCES).token_logprobs
    np.testing.assert_allclose(np.concatenate(got), np.concatenate(one_by_one(model, SEQUENCES)), atol=2e-4)
