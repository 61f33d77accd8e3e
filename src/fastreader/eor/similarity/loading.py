"""Load the models of transformers that judge answers, on first use, and check their names before."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fastreader.core.checks import check_int, require
from fastreader.errors import ModelNotFoundError
from fastreader.models.loading.sentence_encoders import (
    PACKAGED_ENCODERS,
    Encoder,
    as_encoder,
    local_encoder,
    packaged_encoder,
)

_PART = r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"(?:{_PART}/)?{_PART}", re.ASCII)


def check_names(names: Sequence[str]) -> None:
    """Check that each model that similarities name is packaged, a folder with a config.json, or named like a hub id.

    An ensemble answers long before it votes, so a missing folder or a name that no hub allows should raise early. Only
    a hub knows which of the other names exist. Names without a model are ignored.
    """
    for name in names:
        kind, _, model = name.partition(":")
        if kind == "bertscore" and model and packaged_encoder(model) is None:
            expected = f"{' or '.join(PACKAGED_ENCODERS)}, a folder of an encoder, or a hub id"
        elif kind == "nli" and model != "reader":
            expected = "reader, a folder of a classifier, or a hub id"
        else:
            continue
        require_model_name(name, model, expected)


def require_model_name(name: str, model: str, expected: str) -> None:
    """Check that a model is a folder with a config.json, or named like a hub id.

    Args:
        name: where the model is named, for messages.
        model: the folder or hub id.
        expected: what it should be, in words.
    """
    path = Path(model)
    if path.is_dir():
        fits, problem = (path / "config.json").is_file(), f"the folder {model} has no config.json"
    elif path.exists():
        fits, problem = False, f"{model} is a file"
    else:
        fits = bool(_HUB_ID.fullmatch(model)) and ".." not in model and "--" not in model
        problem = f"there is no folder {model}"
    require(fits, f"{name}: {problem}; expected {expected}")


def encoder_for(found: str | os.PathLike[str] | Encoder) -> Encoder:
    """Return `found` itself if it is a function, else load the sentence encoder of that name.

    Raises:
        ModelNotFoundError: if no packaged encoder, folder or hub id has that name.
    """
    if callable(found):
        return found
    try:
        return as_encoder(found)
    except (OSError, TypeError, ValueError) as error:  # transformers raises any of them
        raise ModelNotFoundError(f"encoder: {os.fspath(found)!r} cannot be loaded ({error})") from error


class Model:
    """A model of transformers in float32 for inference, with its tokenizer.

    Attributes:
        kind: the class of transformers that loads it, such as "AutoModel".
        source: a folder or hub id, or for "AutoModel" a packaged encoder.
    """

    def __init__(self, kind: str, source: str | os.PathLike[str], device: str | None, batch_size: int) -> None:
        check_int("batch_size", batch_size)
        self.kind, self.source, self._device, self._batch = kind, os.fspath(source), device, batch_size
        self._loaded: tuple[Any, Any] | None = None

    def load(self) -> tuple[Any, Any]:
        """Return the model and its tokenizer, loaded on first use.

        Byte-level tokenizers read the first word of a text like any other (``add_prefix_space``), as in the BERTScore
        authors' package; otherwise it would match the same word elsewhere less.
        """
        if self._loaded is None:
            import torch
            import transformers

            from fastreader.core.progress import silence_progress_bars

            source = local_encoder(self.source) if self.kind == "AutoModel" else self.source
            with silence_progress_bars():
                kind, trust = getattr(transformers, self.kind), {"trust_remote_code": False}
                model = kind.from_pretrained(source, dtype=torch.float32, **trust).eval()
                tokenizer = transformers.AutoTokenizer.from_pretrained(source, **trust)
                if getattr(tokenizer, "add_prefix_space", None) is False:
                    tokenizer = transformers.AutoTokenizer.from_pretrained(source, add_prefix_space=True, **trust)
            if tokenizer.pad_token is None:
                tokenizer.pad_token = tokenizer.eos_token  # masked out everywhere
            device = self._device or ("cuda" if torch.cuda.is_available() else "cpu")
            self._loaded = model.to(device), tokenizer
        return self._loaded

    def batches(self, texts: Sequence[tuple[str, ...]], **options: Any) -> Iterator[tuple[list[int], Any]]:
        """Yield the indices and the tokenizer's output of texts or pairs of texts, sorted by length.

        Args:
            texts: tuples of one or two texts; texts longer than the model reads are cut.
            options: options of the tokenizer.
        """
        model, tokenizer = self.load()
        # the tokenizer may give no limit, or a number without meaning
        limits = (tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None))
        longest = min(int(limit) for limit in limits if limit is not None and 0 < limit < 10**9)
        options |= {"padding": True, "truncation": True, "max_length": longest, "return_tensors": "pt"}
        order = sorted(range(len(texts)), key=lambda i: sum(map(len, texts[i])))
        for start in range(0, len(order), self._batch):
            part = order[start : start + self._batch]
            columns = [list(column) for column in zip(*(texts[i] for i in part), strict=True)]
            yield part, tokenizer(*columns, **options)
