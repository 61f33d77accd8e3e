"""A packaged reader as a bfloat16 checkpoint, for engines that do not read its GGUF file."""

from __future__ import annotations

from pathlib import Path

from fastreader.data.files import building, cache_dir
from fastreader.models.loading.load import load
from fastreader.models.loading.options import LoadOptions


def folder_of(name: str) -> Path:
    """Return a folder with the packaged reader's weights and tokenizer, which is written once."""
    with building(target := cache_dir() / "plain" / name) as making:
        if making is not None:
            loaded = load(LoadOptions(name, "cpu", "bfloat16"))
            loaded.model.save_pretrained(making)
            loaded.tokenizer.save_pretrained(making)
    return target
