"""A model's folder that attacks: its pickled weights and its chat template run nothing."""

from __future__ import annotations

import json
import os
import pickle

import pytest
import torch
from helpers.support import byte_tokenizer, tiny_llama

from fastreader import Reader
from fastreader.errors import FastreaderError


class _Attack:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def folder(tmp_path):
    model = tmp_path / "model"
    tiny_llama().save_pretrained(model)
    byte_tokenizer(chat=True).save_pretrained(model)
    return model


@pytest.mark.parametrize("packed", [True, False])
def test_pickled_weights_run_nothing(folder, tmp_path, packed):
    mark = tmp_path / "owned"
    (folder / "model.safetensors").unlink()
    weights = folder / "pytorch_model.bin"
    if packed:
        torch.save({"model.norm.weight": _Attack(mark)}, weights)
    else:
        weights.write_bytes(pickle.dumps(_Attack(mark)))
    with pytest.raises(FastreaderError, match="model"):
        Reader.load(folder, device="cpu")
    assert not mark.exists()
    with weights.open("rb") as file:  # the attack itself works
        torch.load(file, weights_only=False) if packed else pickle.load(file)
    assert mark.exists()


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
        "{{ open('/etc/passwd') }}",
    ],
)
def test_a_chat_template_cannot_leave_its_sandbox(folder, attack):
    (folder / "chat_template.jinja").write_text(attack)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": attack}))
    with pytest.raises(FastreaderError):
        reader = Reader.load(folder, device="cpu")
        reader.generate([reader.prompt(["Who?"], chat=True)], max_new_tokens=1)
