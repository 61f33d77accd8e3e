"""The files of a converted folder: plain weights, the integers of a GGUF file, and the index for other programs."""

from __future__ import annotations

import logging
from pathlib import Path

from fastreader.data.files import write_json

logger = logging.getLogger(__name__)
BLOCKS = "blocks.safetensors"  # the integers, which `gguf_weights.write` adds
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


def written_in(folder: str) -> bool:
    """Return whether a model folder holds the integers of a GGUF file."""
    return (Path(folder) / BLOCKS).is_file()


def add_index(folder: Path) -> None:
    """Write an index that names the file with plain weights, if `write` added another and there is no index.

    vLLM and SGLang load every *.safetensors in a folder, and fail on that file, unless an index leaves it out. Earlier
    versions wrote no index, so a cached folder gets it when it is next used. A folder that cannot be written to, or is
    damaged, stays unchanged: this package needs no index.
    """
    if not (folder / BLOCKS).is_file() or (folder / _INDEX).is_file():
        return
    from safetensors import SafetensorError, safe_open

    weights = folder / _WEIGHTS
    try:
        with safe_open(weights, framework="numpy") as stream:
            names = sorted(stream.keys())
        index = {"metadata": {"total_size": weights.stat().st_size}, "weight_map": dict.fromkeys(names, _WEIGHTS)}
        write_json(folder / _INDEX, index, indent=2)
    except (OSError, SafetensorError) as error:
        logger.info("%s: no index written, so other programs may not load this folder: %s", folder, error)
