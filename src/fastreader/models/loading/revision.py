"""A digest of a model's weights, which may change while its name stays the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import torch

from fastreader.models.rewriting.quantised import method

SAMPLES = 64  # values of each parameter
MIN_VALUE = 2.0**-16  # float16 represents bfloat16's values down to here
# Config entries that do not count: how the model was saved and runs, and the context limit, which a user may set.
_VOLATILE = {"architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "max_position_embeddings"}
# Marks, numbers, spaces and scripts in which tokenizers differ.
_PROBE = "It's 1234567.89  (a)\n\n\tNaïve café — ДОМ, 東京タワー, 한국어, ภาษา, عربى, 🙂\u200d🙃 x_y=z;"


def revision(model: Any, tokenizer: Any) -> str:
    """Return a digest of the weights (sampled), the configuration and the tokenizer, which a name does not fix.

    Training or merging changes nearly every value of a matrix, so a few of each suffice; all of them would mean reading
    the checkpoint once more. They are rounded to bfloat16, and to 0 below `MIN_VALUE`, so the storage type, which
    results name anyway, does not matter if the checkpoint is bfloat16. Configuration entries count if they differ from
    the defaults of their class; of the tokenizer its vocabulary, its tokens of a probe text, and its chat template.

    Args:
        model: a transformers model, on any device.
        tokenizer: the model's tokenizer.

    Returns:
        12 hexadecimal digits.
    """
    parts = [_configuration(model), _tokenizer(tokenizer)]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode())
    tensors = list(model.parameters())
    if method(model):
        tensors += model.buffers()  # some libraries keep integers there
    for tensor in tensors:
        for plain in _plain(tensor):
            digest.update(_sample(plain).cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


def _configuration(model: Any) -> dict[str, Any]:
    values = model.config.to_diff_dict()
    return {key: value for key, value in values.items() if key not in _VOLATILE and not key.startswith("_")}


def _tokenizer(tokenizer: Any) -> list[Any]:
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1]))
    return [
        getattr(tokenizer, "chat_template", None),
        list(tokenizer(_PROBE)["input_ids"]),
        list(tokenizer(_PROBE, add_special_tokens=False)["input_ids"]),
        hashlib.sha256(vocabulary.encode()).hexdigest(),
    ]


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors that hold the values of a tensor, which may be of a quantised kind."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        yield from _plain(getattr(tensor, name))


def _sample(parameter: torch.Tensor) -> torch.Tensor:
    """Return `SAMPLES` values at even distances, the first and the last included, as bytes."""
    flat = parameter.detach().reshape(-1)
    if not len(flat):
        return flat.new_empty(0, dtype=torch.uint8)
    places = torch.linspace(0, len(flat) - 1, min(SAMPLES, len(flat)), dtype=torch.float64).long()
    values = flat[places.to(flat.device)]
    if values.is_floating_point():
        values = values.to(torch.bfloat16)
        values = torch.where(values.abs() < MIN_VALUE, torch.zeros_like(values), values)
    return values.view(torch.uint8)
