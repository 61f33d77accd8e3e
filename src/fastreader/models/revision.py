"""Which weights a model holds: its name may stay while they change."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

VALUES = 64  # of each parameter
LEAST = 2.0**-16  # float16 holds bfloat16's values down to here
# Of a configuration: how it was saved and is run, and the limit of the context, which a user may set.
_VOLATILE = {"architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "max_position_embeddings"}
# Marks, numbers, spaces and scripts that tokenizers differ in.
_PROBE = "It's 1234567.89  (a)\n\n\tNaïve café — ДОМ, 東京タワー, 한국어, ภาษา, عربى, 🙂\u200d🙃 x_y=z;"


def revision(model: Any, tokenizer: Any) -> str:
    """A digest of what a name or a path leaves open: samples of the weights, the configuration and the tokenizer.

    Training or merging moves nearly every value of a matrix, so that a few of each tell; all of them would mean
    reading the checkpoint once more. They are rounded to bfloat16, and to 0 below `LEAST`, so that the storage type,
    which results name anyway, changes nothing where the checkpoint is bfloat16. Of the configuration what differs from
    its class's defaults counts; of the tokenizer its vocabulary, how it cuts a probe text, and its chat template.

    Args:
        model: a transformers model, on any device.
        tokenizer: of it.

    Returns:
        12 hexadecimal digits.
    """
    digest = hashlib.sha256(json.dumps([_configuration(model), _cut(tokenizer)], sort_keys=True, default=str).encode())
    for parameter in model.parameters():
        digest.update(_sample(parameter).cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


def _configuration(model: Any) -> dict[str, Any]:
    """Without `_VOLATILE` and what is private."""
    values = model.config.to_diff_dict()
    return {key: value for key, value in values.items() if key not in _VOLATILE and not key.startswith("_")}


def _cut(tokenizer: Any) -> list[Any]:
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1]))
    return [
        getattr(tokenizer, "chat_template", None),
        list(tokenizer(_PROBE)["input_ids"]),
        list(tokenizer(_PROBE, add_special_tokens=False)["input_ids"]),
        hashlib.sha256(vocabulary.encode()).hexdigest(),
    ]


def _sample(parameter: torch.Tensor) -> torch.Tensor:
    """`VALUES` values at even distances, the first and the last among them, as bytes."""
    flat = parameter.detach().reshape(-1)
    if not len(flat):
        return flat.new_empty(0, dtype=torch.uint8)
    places = torch.linspace(0, len(flat) - 1, min(VALUES, len(flat)), dtype=torch.float64).long()
    taken = flat[places.to(flat.device)]
    if taken.is_floating_point():
        taken = taken.to(torch.bfloat16)
        taken = torch.where(taken.abs() < LEAST, torch.zeros_like(taken), taken)
    return taken.view(torch.uint8)
