"""A digest of a model's weights, which may change while its name stays the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch

from fastreader.data.fingerprints import (
    computed_meanwhile,
    digest,
    digested_meanwhile,
    file_digest,
    kept_note,
    known_note,
    model_files,
    unchanged_file,
)
from fastreader.models.gguf import tokenizer as gguf_tokenizer
from fastreader.models.loading.decide import Decision
from fastreader.models.loading.find import Found
from fastreader.models.rewriting import surgery
from fastreader.models.rewriting.quantised import method

FileDigests: TypeAlias = Callable[[], list[str]]
_WIDE = (torch.float32, torch.float64)
_CHUNK = 1 << 24  # values that are hashed at a time
# Config entries that do not count: how the model was saved and runs, and the context limit, which a user may set.
_VOLATILE = {"architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"}
_LIMIT = "max_position_embeddings"
_SCALINGS_WITHOUT_LIMIT = {"default", "linear", "llama3", "proportional"}
# Marks, numbers, spaces and scripts in which tokenizers differ.
_PROBE = "It's 1234567.89  (a)\n\n\tNaïve café — ДОМ, 東京タワー, 한국어, ภาษา, عربى, 🙂\u200d🙃 x_y=z;"


def revision(model: Any, tokenizer: Any, weights: str | None = None, vocabulary: str | None = None) -> str:
    """Return a digest of the weights, the configuration and the tokenizer, which a name does not fix.

    Configuration entries count if they differ from the defaults of their class; of the tokenizer its vocabulary, its
    tokens of a probe text, and its chat template.

    Args:
        model: a transformers model, on any device.
        tokenizer: the model's tokenizer.
        weights: `weights_digest` of the model if it is known; None computes it.
        vocabulary: `vocabulary_digest` of the tokenizer if it is known; None computes it.

    Returns:
        12 hexadecimal digits.
    """
    return revision_with(parts_of_revision(model, tokenizer, vocabulary), weights or weights_digest(model))


def parts_of_revision(model: Any, tokenizer: Any, vocabulary: str | None = None) -> list[Any]:
    """Return what a `revision` is a digest of besides the weights."""
    return [_configuration(model), _tokenizer(tokenizer, vocabulary or vocabulary_digest(tokenizer))]


def revision_with(parts: list[Any], weights: str) -> str:
    """Return the `revision` of a model with these `parts_of_revision` and this `weights_digest`."""
    return digest([*parts, weights], 12)


def weights_digest(model: Any, tensors: list[torch.Tensor] | None = None) -> str:
    """Return the SHA-256 of all values of a model's state: parameters and buffers that are saved with it.

    The type in which values are stored does not matter as long as it holds the same values.

    Args:
        model: a transformers model, on any device.
        tensors: its state, for threads next to which modules may change.

    Returns:
        64 hexadecimal digits.
    """
    found = hashlib.sha256()
    for tensor in _state(model) if tensors is None else tensors:
        for plain in _plain(tensor.detach()):
            found.update(f"{list(plain.shape)} {plain.is_floating_point()}".encode())
            for values in torch.split(plain.reshape(-1), _CHUNK):
                found.update(_narrowest(values.cpu()).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _state(model: Any) -> list[torch.Tensor]:
    buffers = model.buffers() if method(model) else ()  # some libraries keep integers there
    return [*surgery.saved_tensors(model), *buffers]


@contextmanager
def gguf_digested_meanwhile(found: Found) -> Iterator[FileDigests | None]:
    """Compute the digests of a GGUF's files in a thread while the block runs, or None without such a file."""
    if found.file is None:
        yield None
        return
    with digested_meanwhile(found.file.paths) as digests:
        yield digests


def kept_weights_digest(
    model: Any, found: Found, decision: Decision, files: FileDigests | None
) -> str | Callable[[], str]:
    """Return `weights_digest` of a loaded model, from the cache folder while the model's files stay the same.

    A GGUF file has a digest of its content instead, and of the type to which its values were rounded.

    Args:
        model: the text model, as it was read.
        found: what it was read from.
        decision: how it was read.
        files: gives the digests of a GGUF's files, see `gguf_digested_meanwhile`.

    Returns:
        The digest if it is known, else a function that waits for a thread, which computes it.
    """
    if files is not None and found.adapter is None:
        dtype = decision.arithmetic.dtype
        rounded = "" if decision.reads == "integers" or dtype in _WIDE else str(dtype)
        return digest([files(), rounded], 64)
    folder = Path(found.source)
    if found.adapter is not None or not folder.is_dir():
        return weights_digest(model)
    known = [unchanged_file(file) for file in model_files(folder)]
    if None in known:
        return weights_digest(model)
    import transformers

    about = [known, str(decision.arithmetic.dtype), decision.reads, type(model).__qualname__]
    versions = [torch.__version__, transformers.__version__, file_digest(__file__)]
    kind, key, state = "weights", digest([about, versions], 32), _state(model)
    if (kept := known_note(kind, key)) is not None:
        return kept
    compute = partial(kept_note, kind, key, lambda: weights_digest(model, state))
    # A pass may change quantised weights, and a thread would hold a device's memory.
    changes = method(model) or any(tensor.device.type != "cpu" for tensor in state)
    return compute() if changes else computed_meanwhile(compute)


def _configuration(model: Any) -> dict[str, Any]:
    values = model.config.to_diff_dict()
    volatile = _VOLATILE if _scales_by_limit(values) else {*_VOLATILE, _LIMIT}
    return {key: value for key, value in values.items() if key not in volatile and not key.startswith("_")}


def _scales_by_limit(config: Any) -> bool:
    """Return whether a config has a rotary scheme that may read the context limit, as longrope and dynamic do."""
    if not isinstance(config, dict):
        return False
    kind = config.get("rope_type", config.get("type")) if "rope_theta" in config or "factor" in config else None
    own = "long_factor" in config or (kind is not None and kind not in _SCALINGS_WITHOUT_LIMIT)
    return own or any(_scales_by_limit(value) for value in config.values())


def vocabulary_digest(tokenizer: Any) -> str:
    """Return the SHA-256 of a tokenizer's tokens in the order of their ids, in 64 hexadecimal digits."""
    entries = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def kept_vocabulary_digest(tokenizer: Any, found: Found, files: FileDigests | None) -> str:
    """Return `vocabulary_digest` of a loaded tokenizer, from the cache folder if a known GGUF file holds it."""
    if files is None or found.tokenizer != found.source:
        return vocabulary_digest(tokenizer)
    import tokenizers

    sources = sorted(Path(gguf_tokenizer.__file__).parent.glob("*.py"))
    code = [tokenizers.__version__, *map(file_digest, sources), file_digest(__file__)]
    return kept_note("vocabularies", digest([files(), code], 32), lambda: vocabulary_digest(tokenizer))


def _tokenizer(tokenizer: Any, vocabulary: str) -> list[Any]:
    return [
        getattr(tokenizer, "chat_template", None),
        list(tokenizer(_PROBE)["input_ids"]),
        list(tokenizer(_PROBE, add_special_tokens=False)["input_ids"]),
        vocabulary,
    ]


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors that hold the values of a tensor, which may be of a quantised kind."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        yield from _plain(getattr(tensor, name))


def _narrowest(values: torch.Tensor) -> torch.Tensor:
    """Return values in the first of bfloat16, float32 and their own type that holds them, so that types compare."""
    if values.dtype in (torch.float16, torch.float32, torch.float64):
        for dtype in (torch.bfloat16, torch.float32):
            narrow = values.to(dtype)
            if torch.equal(narrow.to(values.dtype), values):
                return narrow
    return values.contiguous()
