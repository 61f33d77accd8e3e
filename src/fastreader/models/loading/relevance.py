"""How a reranker's folder scores a query with a document: labels of its LM head, or a classification head.

The folders have the format of sentence-transformers (modules.json with a LogitScore) or of transformers (a decoder
with a head for sequence classification).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastreader.core.checks import expect, is_int, shown
from fastreader.data.fingerprints import digest
from fastreader.errors import ModelFileError, UnsupportedModelError
from fastreader.models.loading.files import parsed, parsed_objects

_HEAD = "ForSequenceClassification"
_SCORES = {"LogitScore", "CausalScoreHead"}  # the second in folders of development versions
_ACTIVATIONS = {"Sigmoid": "sigmoid", "Identity": "identity"}
_SIZE_OPTIONS = {"padding", "truncation", "max_length", "return_tensors", "restore_suffix"}  # not of the template
_POSITIVE = {"yes", "true", "relevant", "positive", "entailment"}


@dataclass(frozen=True, eq=False)
class RelevanceScheme:
    """How a model scores a query with a document, at the last position of their prompt.

    Attributes:
        rows: rows of the LM head, or of `weight`: one whose logit is the score, or two whose difference is.
        weight: float32 [L, E], the classification head; None if the LM head scores.
        bias: float32 [L] of `weight`, or None.
        activation: "sigmoid" or "identity", from the score to what the model's card calls it.
        template: variables of the chat template that renders the pair; None if the tokenizer joins the two texts.
        structured: whether the template takes a message's content as a list of parts.
        prompts: instructions by name.
        prompt: the default instruction, or None.
        longest: longest prompt in tokens; None if only the model's context bounds it.
        pad: token that does not count at a prompt's end, or None.
    """

    rows: tuple[int, ...]
    weight: Tensor | None = None
    bias: Tensor | None = None
    activation: str = "sigmoid"
    template: Mapping[str, Any] | None = None
    structured: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt: str | None = None
    longest: int | None = None
    pad: int | None = None

    def digest(self, model: str) -> str:
        """Return a digest of a model's digest and of how it scores, 12 hexadecimal digits."""
        tensors = [None if t is None else t.tolist() for t in (self.weight, self.bias)]
        how = [self.activation, dict(self.template or {}), self.structured, dict(self.prompts), self.prompt]
        return digest([model, list(self.rows), tensors, how, self.longest, self.pad], 12)


def has_head(config: Any) -> bool:
    """Return whether a config is of a decoder with a head for sequence classification."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    names = getattr(config, "architectures", None) or [""]
    return str(names[0]).endswith(_HEAD) and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING


def scheme_of(folder: Path, config: Any, head: nn.Linear | None, tokenizer: Any) -> RelevanceScheme | None:
    """Return how the model of a folder scores pairs, or None if it is no reranker.

    Args:
        folder: with the model's files, without its weights if it is on the hub.
        config: of the model.
        head: its classification head, or None.
        tokenizer: of the model.

    Raises:
        ModelFileError: if a file lacks a value, or names a token outside the vocabulary.
        UnsupportedModelError: if the folder scores in a way that is not known here.
    """
    modules = parsed_objects(folder / "modules.json") if (folder / "modules.json").is_file() else []
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    scored = [module for module, kind in zip(modules, kinds, strict=True) if kind in _SCORES]
    if not scored and head is None:
        return None
    if len(scored) + (head is not None) > 1:
        raise UnsupportedModelError(f"{folder}: two heads score a pair: {', '.join(kinds)}")
    others = [kind for kind in kinds if kind not in _SCORES and kind != "Transformer"]
    if others:
        raise UnsupportedModelError(f"{folder}: modules.json: {others[0]} is not supported in a reranker")
    about = _optional(folder / "config_sentence_transformers.json")
    text = _optional(folder / "sentence_bert_config.json")
    named = about.get("activation_fn") or getattr(config, "sbert_ce_default_activation_function", None)
    named = (getattr(config, "sentence_transformers", None) or {}).get("activation_fn", named)
    rows: tuple[int, ...]
    if head is None:
        rows, labels = _rows(folder / str(scored[0].get("path", "")) / "config.json", config), 1
    else:
        rows, labels = _labels(str(folder), config, head), int(head.weight.shape[0])
    prompts = about.get("prompts") or {}
    expect(isinstance(prompts, dict), f"{folder}: config_sentence_transformers.json: prompts", "texts by name", prompts)
    name = about.get("default_prompt_name")
    if name is not None and name not in prompts:
        raise ModelFileError(f"{folder}: config_sentence_transformers.json: no prompt is named {name!r}")
    weight = None if head is None else head.weight.detach().float()
    bias = None if head is None or head.bias is None else head.bias.detach().float()
    template, structured = _template(text, tokenizer)
    longest = text.get("max_seq_length")
    limit = getattr(tokenizer, "model_max_length", None)
    sizes = [int(size) for size in (longest, limit) if size is not None and is_int(size) and 0 < size < 2**30]
    pad = config.get_text_config().pad_token_id if head is not None else None
    return RelevanceScheme(
        rows,
        weight,
        bias,
        _activation(str(folder), named, labels),
        template,
        structured,
        {key: str(value) for key, value in prompts.items() if value},
        prompts.get(name) or None,
        min(sizes, default=None),
        pad,
    )


def _optional(file: Path) -> dict[str, Any]:
    return parsed(file) if file.is_file() else {}


def _rows(file: Path, config: Any) -> tuple[int, ...]:
    """Return the label tokens of a LogitScore."""
    values, vocabulary = _optional(file), config.get_text_config().vocab_size
    rows = []
    for name in ("true_token_id", "false_token_id"):
        token = values.get(name)
        if token is None and name == "false_token_id":
            continue
        if token is None or not is_int(token) or not 0 <= token < vocabulary:
            raise ModelFileError(f"{file}: {name}: expected a token id below {vocabulary}, got {shown(token)}")
        rows.append(int(token))
    if len({*rows}) < len(rows):  # every score would be 0
        raise ModelFileError(f"{file}: true_token_id and false_token_id are both {rows[0]}")
    return tuple(rows)


def _labels(name: str, config: Any, head: nn.Linear) -> tuple[int, ...]:
    """Return the rows of a classification head that score: its only one, or the positive and the other of two."""
    count = int(head.weight.shape[0])
    if count == 1:
        return (0,)
    if count != 2:
        raise UnsupportedModelError(f"{name}: its head has {count} labels; a reranker has 1 or 2")
    labels = {i: str(label).lower() for i, label in (getattr(config, "id2label", None) or {}).items()}
    first = labels.get(0) in _POSITIVE and labels.get(1) not in _POSITIVE
    return (0, 1) if first else (1, 0)


def _activation(name: str, dotted: str | None, labels: int) -> str:
    if dotted is None:
        return "sigmoid" if labels == 1 else "identity"
    found = _ACTIVATIONS.get(str(dotted).rpartition(".")[2]) if str(dotted).startswith("torch.") else None
    if found is None:
        raise UnsupportedModelError(f"{name}: the activation {dotted} of its scores is not supported")
    return found


def _template(text: Mapping[str, Any], tokenizer: Any) -> tuple[Mapping[str, Any] | None, bool]:
    """Return the variables of the chat template, None if it does not render pairs, and whether contents have parts."""
    modalities = text.get("modality_config")
    message = (modalities or {}).get("message")
    if message is None and (modalities is not None or not _takes_pairs(tokenizer)):
        return None, False
    options = (text.get("processing_kwargs") or {}).get("chat_template") or {}
    structured = isinstance(message, dict) and message.get("format") == "structured"
    return {key: value for key, value in options.items() if key not in _SIZE_OPTIONS}, structured


def _takes_pairs(tokenizer: Any) -> bool:
    template = str(getattr(tokenizer, "chat_template", None) or "")
    return "query" in template and "document" in template


def without_head(model: Any) -> tuple[Any, nn.Linear]:
    """Return the causal LM around a classifier's text model, and the classifier's head.

    The LM head is the input embedding, which nothing reads, since such a model lacks one.

    Raises:
        UnsupportedModelError: if the classifier is not a text model with one linear layer behind it.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    name = type(model).__name__
    head: Any = getattr(model, "score", None)
    base: Any = getattr(model, "base_model", None)
    rest = set(model.modules()) - set(base.modules()) - {model, head} if base is not None else {model}
    if not isinstance(head, nn.Linear) or base is model or rest:
        raise UnsupportedModelError(f"{name}: expected a text model and one linear layer, named score, behind it")
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(model.config)]
    with torch.device("meta"):
        text = (kind[0] if isinstance(kind, tuple) else kind)(model.config)
    if type(text.base_model) is not type(base):
        raise UnsupportedModelError(f"{name}: its text model is not that of {type(text).__name__}")
    setattr(text, text.base_model_prefix, base)
    output = text.get_output_embeddings()
    output.weight = base.get_input_embeddings().weight
    if output.bias is not None:
        output.bias = nn.Parameter(output.weight.new_zeros(output.weight.shape[0]), requires_grad=False)
    return text.eval(), head
