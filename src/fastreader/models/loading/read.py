"""Third step of loading: read weights and tokenizer, merge an adapter, and take the text model."""

from __future__ import annotations

import copy
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastreader.errors import ModelFileError, UnsupportedModelError
from fastreader.models.gguf import weights as gguf_weights
from fastreader.models.gguf.file import GgufFile
from fastreader.models.gguf.tokenizer import tokenizer_of
from fastreader.models.loading import peft_adapters
from fastreader.models.loading.decide import Decision, form_of
from fastreader.models.loading.files import check_loading_info, guarded, guarded_build
from fastreader.models.loading.find import Found, reranker_files
from fastreader.models.loading.relevance import RelevanceScheme, has_head, scheme_of, without_head
from fastreader.models.loading.text_only import EncoderNeededError, classes_for, text_model
from fastreader.models.rewriting import quantised, surgery
from fastreader.models.rewriting.device_hooks import settled

logger = logging.getLogger(__name__)
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")  # the index in a weight's name
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_MOST_TOKENS = 2**24  # of a vocabulary; the largest in use have a quarter of a million


@dataclass(frozen=True)
class Contents:
    """What was read.

    Attributes:
        whole: the model with all parts that were read, an adapter merged.
        text: its text model, which shares modules with it or is the same object.
        tokenizer: of the model.
        relevance: how it scores a query with a document; None if it is no reranker.
    """

    whole: Any
    text: Any
    tokenizer: Any
    relevance: RelevanceScheme | None = None


def read(found: Found, decision: Decision) -> Contents:
    """Return the model and the tokenizer of what was found.

    Raises:
        ModelFileError: if a file is damaged or truncated, lacks weights, or holds more layers than its config.
        UnsupportedModelError: if transformers has no causal LM or tokenizer of that kind, or the adapter cannot be
            merged.
        InputError: if the adapter is for another model.
        MissingExtraError: if an adapter needs peft, which is not installed.
    """
    if decision.reads == "pair":
        return Contents(decision.given, decision.given, found.options.model[1])
    if found.file is not None:
        whole, text = _read_gguf(found.file, found, decision)
        return Contents(whole, text, guarded(lambda: _tokenizer(found), found.tokenizer))
    head = None
    if has_head(found.config):
        text, head = _read_classifier(found, decision)
        whole = text
    else:
        whole, text = _read_checkpoint(found, decision)
    tokenizer = guarded(lambda: _tokenizer(found), found.tokenizer)
    return Contents(whole, text, tokenizer, scheme_of(reranker_files(found), found.config, head, tokenizer))


def read_without_weights(found: Found) -> tuple[Any, RelevanceScheme | None]:
    """Return the tokenizer of a model in files, and how it scores a query with a document.

    The scheme is None if the model is no reranker; its `weight` is on the meta device.

    Raises:
        ModelFileError, UnsupportedModelError: as `read`.
    """
    tokenizer = guarded(lambda: _tokenizer(found), found.tokenizer)
    if found.file is not None:
        return tokenizer, None
    head = None
    if has_head(found.config):
        _, head = without_head(guarded_build(lambda: _classifier_on_meta(found.config), found.source, found.config))
    return tokenizer, scheme_of(reranker_files(found), found.config, head, tokenizer)


def require_relevance(found: Found) -> None:
    """Check how a reranker scores, as far as that is known before its weights are read.

    Other models pass.

    Raises:
        ModelFileError, UnsupportedModelError: as `read`.
    """
    if found.kind != "pair" and found.file is None:
        read_without_weights(found)


def _classifier_on_meta(config: Any) -> Any:
    import transformers

    with torch.device("meta"):
        own = copy.deepcopy(surgery.with_eager_attention(config) or config)
        return transformers.AutoModelForSequenceClassification.from_config(own)


def _read_classifier(found: Found, decision: Decision) -> tuple[Any, Any]:
    """Return the text model of a decoder for sequence classification, and its head."""
    import transformers

    model, _ = _read_as(transformers.AutoModelForSequenceClassification, found, decision)
    if quantised.method(model):
        raise UnsupportedModelError(f"{found.source}: a quantised model with a classification head is not supported")
    return without_head(model)


def _read_gguf(file: GgufFile, found: Found, decision: Decision) -> tuple[Any, Any]:
    """Return the model of a GGUF file with its integers or the values that they represent."""
    form = form_of(found, decision)
    model = guarded(lambda: gguf_weights.load(file, found.config, form), found.source)
    return _text_part(model, found)


def _read_checkpoint(found: Found, decision: Decision) -> tuple[Any, Any]:
    """Return what transformers reads, if possible by a class without vision and audio encoders."""
    trusted = found.options.trust_remote_code
    classes = guarded(lambda: classes_for(found.config, trusted, found.adapter), found.source)
    try:
        return _read_as(classes[0], found, decision)
    except EncoderNeededError:
        return _read_as(classes[-1], found, decision)


def _read_as(automatic: Any, found: Found, decision: Decision) -> tuple[Any, Any]:
    """Return a checkpoint as a transformers class reads it, and its text model."""
    arguments: dict[str, Any] = {"dtype": decision.arithmetic.dtype, **found.access}
    if (config := surgery.with_eager_attention(found.config)) is not None:
        arguments["config"] = config
    if peft_adapters.is_left_over(Path(found.source)):
        arguments["adapter_kwargs"] = {"subfolder": "none"}  # so that transformers does not find it
    scheme = getattr(found.config, "quantization_config", None)
    if scheme:  # such weights may not move once they are loaded
        device_map = found.options.device_map or {"": decision.arithmetic.device}
        arguments["device_map"] = device_map
    # Weights of another shape are reported in loading_info, and rejected below by name.
    arguments |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    model, loading_info = guarded_build(
        lambda: automatic.from_pretrained(found.source, **arguments),
        found.source,
        found.config,
        quantised=bool(scheme),
    )
    check_loading_info(found.source, loading_info)
    _check_layers(found.source, model, loading_info)
    peft_adapters.merge_loaded(model)
    return _text_part(quantised.taken_over(model), found)


def _text_part(model: Any, found: Found) -> tuple[Any, Any]:
    """Return a model with the adapter merged, and its text model."""
    if found.adapter is not None:
        model = _adapted(model, found)
    if quantised.method(model):
        model = settled(model, type(model).__name__)
    return model, text_model(model)


def _adapted(model: Any, found: Found) -> Any:
    """Return a model, or its text model if the adapter's weights are named for that, with the adapter merged."""
    assert found.adapter is not None
    text = text_model(model)
    of_text = text is not model and (
        peft_adapters.named_in(text, found.adapter) > peft_adapters.named_in(model, found.adapter)
    )
    return peft_adapters.merge(text if of_text else model, found.adapter)


def _tokenizer(found: Found) -> Any:
    if found.file is not None and found.tokenizer == found.source:
        tokenizer = tokenizer_of(found.file.metadata, found.source)
        tokenizer.name_or_path = found.source
        if len(tokenizer) > (rows := found.config.vocab_size):
            raise ModelFileError(f"{found.source}: {len(tokenizer)} tokens, but token_embd.weight has {rows} rows")
        return tokenizer
    import transformers
    from transformers.utils.hub import cached_file

    access, optional = dict(found.access), {"_raise_exceptions_for_missing_entries": False}
    local = {"local_files_only": access["local_files_only"], **optional}
    if all(cached_file(found.tokenizer, name, **local) for name in ("tekken.json", "tokenizer.json")):
        access["mistral_format"] = False  # else mistral-common, if it is installed, takes the place of tokenizer.json
    tokenizer = transformers.AutoTokenizer.from_pretrained(found.tokenizer, **access)
    backend = getattr(tokenizer, "_tokenizer", None)
    # False if transformers knows the folder as one of those whose split of digits and capitals was converted wrongly
    if getattr(backend, "fix_mistral_regex", None) is False and _first_split(backend) == _LLAMA3_SPLIT:
        logger.warning(
            "%s: a Mistral tokenizer saved with Llama 3's split; Mistral's own is used. If the model was trained with "
            "the tokenizer as it is, load a pair (model, tokenizer)",
            found.tokenizer,
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(found.tokenizer, fix_mistral_regex=True, **access)
        backend = getattr(tokenizer, "_tokenizer", None)
    model: Any = getattr(backend, "model", None)
    if getattr(model, "dropout", None) is not None:
        model.dropout = None  # left from training; equal texts have equal tokens
    if (largest := max(tokenizer.get_vocab().values(), default=0)) >= _MOST_TOKENS:
        # tokenizers walks every id below the largest whenever it copies or saves one: minutes, then memory
        raise ModelFileError(
            f"{found.tokenizer}: the tokenizer has token {largest}; at most {_MOST_TOKENS - 1} is possible"
        )
    return tokenizer


def _first_split(backend: Any) -> str | None:
    """Return the regular expression by which a Rust tokenizer first splits a text, or None."""
    settings = surgery.pre_tokenizer_settings(backend)
    first = next(iter(settings.get("pretokenizers", [])), settings)
    pattern = first.get("pattern", {}).get("Regex")
    return pattern if isinstance(pattern, str) else None


def _check_layers(name: str, model: Any, loading_info: dict[str, Any]) -> None:
    """Raise ModelFileError if the files hold layers like the model's beyond the last that its config counts."""
    # Not state_dict, with which a library may change its layers.
    own = {_LAYER.sub("#", key) for key, _ in (*model.named_parameters(), *model.named_buffers())}
    beyond = sorted(key for key in loading_info.get("unexpected_keys", ()) if _LAYER.sub("#", key) in own)
    if beyond:
        count = model.config.get_text_config().num_hidden_layers
        raise ModelFileError(
            f"{name}: the config counts {count} layers, the files hold more: {beyond[0]} and {len(beyond) - 1} others"
        )
