"""Models of transformers that judge answers: loaded quietly, on their device, with a tokenizer that fits."""

from __future__ import annotations

from typing import Any


def load(kind: str, source: str, device: str | None) -> tuple[Any, Any]:
    """A model in float32 for inference, and its tokenizer.

    Byte-level tokenizers are told to read a word at a text's start as one within it (``add_prefix_space``), as the
    authors of BERTScore have it; without, an answer's first word would match the same word elsewhere less.

    Args:
        kind: the class of transformers that loads it, such as "AutoModel".
        source: a folder or hub id.
        device: of torch; None: CUDA where there is one.
    """
    import torch
    import transformers

    from fastreader.models.silence import no_bars

    with no_bars():
        model = getattr(transformers, kind).from_pretrained(source, dtype=torch.float32).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        if getattr(tokenizer, "add_prefix_space", None) is False:
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, add_prefix_space=True)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # masked out everywhere
    return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")), tokenizer


def longest(model: Any, tokenizer: Any) -> int:
    """Tokens that model and tokenizer read at most; a tokenizer may not say, or say a number without meaning."""
    limits = (tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None))
    return min(int(limit) for limit in limits if limit is not None and 0 < limit < 10**9)
