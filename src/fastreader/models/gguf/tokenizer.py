"""Build the tokenizer that a GGUF file's metadata describe, with the token ids of llama.cpp's."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from fastreader.core.checks import is_int, shown
from fastreader.errors import ModelFileError, UnsupportedModelError
from fastreader.models.gguf.splits import SPLITS, Split
from fastreader.models.gguf.vocabulary import (
    BYTE,
    CONTROL,
    PREFIX,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    flag,
    read_merges,
    read_scores,
    read_vocabulary,
    token_id,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

logger = logging.getLogger(__name__)

_TEMPLATE = "tokenizer.chat_template"
_ROLES = {"bos": "bos", "eos": "eos", "unknown": "unk", "seperator": "sep", "padding": "pad", "cls": "cls"}
_ROLES["mask"] = "mask"
_DEFAULTS: dict[str, dict[str, int]] = {"gpt2": {}, "llama": {"bos": 1, "eos": 2, "unk": 0}}  # where a file names none
# What follows changes no token id: places in code that is written between two others, and what other programs note.
_WITHOUT_EFFECT = (
    "prefix_token_id suffix_token_id middle_token_id fim_pre_token_id fim_suf_token_id fim_mid_token_id "
    "fim_pad_token_id fim_rep_token_id fim_sep_token_id token_type_count remove_extra_whitespaces add_sep_token "
    "add_eot_token add_unknown_token add_padding_token add_mask_token add_cls_token add_seperator_token"
)
_READ = (
    "model pre tokens token_type scores merges add_bos_token add_eos_token add_space_prefix eot_token_id eom_token_id "
    "eos_token_ids"
)
TOKENIZER_KEYS = frozenset(
    [PREFIX + name for name in (_READ + " " + _WITHOUT_EFFECT).split()]
    + [f"{PREFIX}{name}_token_id" for name in _ROLES]
    + [_TEMPLATE, "tokenizer.chat_templates", "tokenizer.huggingface.json"]
)


def tokenizer_of(metadata: Mapping[str, Any], source: str) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a GGUF file.

    Ids are the ids of the file. Control tokens are special tokens; the tokens that a user defined are found in every
    text. A beginning and an end of text are added by llama.cpp's rule.

    Args:
        metadata: values by key; arrays as lists.
        source: name of the file, for messages.

    Raises:
        UnsupportedModelError: if the kind of vocabulary, the split or a key of the tokenizer is not known.
        ModelFileError: if the metadata lack a part of the tokenizer, or hold a wrong value.
    """
    from transformers import PreTrainedTokenizerFast

    check_keys(metadata, source)
    model = metadata.get(f"{PREFIX}model")
    if model is None:
        raise ModelFileError(f"{source}: no {PREFIX}model, without which there is no tokenizer")
    if not isinstance(model, str) or model not in _DEFAULTS:
        known = "expected gpt2 (byte-level) or llama (SentencePiece)"
        raise UnsupportedModelError(f"{source}: {PREFIX}model: {known}, got {shown(model)}")
    vocabulary = read_vocabulary(metadata, source)
    roles = {ours: _role(metadata, theirs, vocabulary, _DEFAULTS[model].get(ours)) for theirs, ours in _ROLES.items()}
    if model == "llama":
        backend, adds_bos = _sentence_pieces(metadata, vocabulary, roles["unk"]), True
    else:
        split = split_of(metadata, source)
        backend, adds_bos = _byte_level(metadata, vocabulary, split), split.add_bos
    _add_tokens(backend, vocabulary, str(metadata.get("general.name", "")))
    backend.post_processor = _frame(metadata, vocabulary, roles, adds_bos)
    # transformers makes what has a role a special token: right for what the file calls one, wrong for a word.
    named = {role: i for role, i in roles.items() if i is not None and vocabulary.types[i] in (CONTROL, UNKNOWN)}
    options: dict[str, Any] = {f"{role}_token": vocabulary.tokens[i] for role, i in named.items()}
    length: Any = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    if is_int(length):
        options["model_max_length"] = int(length)
    options["chat_template"] = _templates(metadata, source)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_Given(backend),
        clean_up_tokenization_spaces=False,
        **options,
    )
    for role in ("bos", "eos"):
        i = roles[role]
        if i is not None and role not in named:
            setattr(tokenizer, f"{role}_token", vocabulary.tokens[i])
    return tokenizer


class _Given:
    """A backend that transformers may keep: copying a large vocabulary takes a second."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend

    def __deepcopy__(self, memo: dict[int, Any]) -> Tokenizer:
        return self._backend


def ends_of(metadata: Mapping[str, Any], source: str) -> list[int]:
    """Return the token ids that end a turn or a text: the file's, and those that llama.cpp knows by their text.

    Raises:
        ModelFileError: if the metadata list no tokens, or hold a wrong value.
    """
    return read_vocabulary(metadata, source).ends


def check_keys(metadata: Mapping[str, Any], source: str) -> None:
    """Raise UnsupportedModelError if the metadata have a key of the tokenizer that is not known."""
    for key in metadata:
        known = key in TOKENIZER_KEYS or key.startswith(f"{_TEMPLATE}.")
        if key.startswith("tokenizer.") and not known:
            raise UnsupportedModelError(f"{source}: the key {key} is not known; it may change the tokens of a text")


def split_of(metadata: Mapping[str, Any], source: str) -> Split:
    """Return how a text is split before the merges of a byte-level vocabulary.

    Raises:
        UnsupportedModelError: if the name in `tokenizer.ggml.pre` is not known.
    """
    name = metadata.get(f"{PREFIX}pre")
    if name is None:
        logger.warning("%s: no %spre, as in old files; texts may be split otherwise than in training", source, PREFIX)
        name = "default"
    if not isinstance(name, str) or name not in SPLITS:
        known = ", ".join(sorted(SPLITS))
        raise UnsupportedModelError(f"{source}: {PREFIX}pre: expected one of {known}, got {shown(name)}")
    return SPLITS[name]


def _role(metadata: Mapping[str, Any], name: str, vocabulary: Vocabulary, default: int | None) -> int | None:
    """Return the id of the token with a role, or `default` if the file has none and the vocabulary has that."""
    count = len(vocabulary.tokens)
    if name in ("padding", "seperator", "cls", "mask"):  # not used here; files name tokens that do not exist
        value: Any = metadata.get(f"{PREFIX}{name}_token_id")
        if is_int(value) and not 0 <= value < count:
            logger.warning("%s: %s%s_token_id: no token %s; it is left out", vocabulary.source, PREFIX, name, value)
            return None
    found = token_id(metadata, name, count, vocabulary.source)
    return default if found is None and default is not None and default < count else found


def _byte_level(metadata: Mapping[str, Any], vocabulary: Vocabulary, split: Split) -> Tokenizer:
    merges = read_merges(metadata, vocabulary)
    backend = Tokenizer(models.BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=split.ignore_merges))
    flag(metadata, "add_space_prefix", False, vocabulary.source)  # which llama.cpp reads for SentencePiece alone
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentence_pieces(metadata: Mapping[str, Any], vocabulary: Vocabulary, unknown: int | None) -> Tokenizer:
    """Return the backend of a SentencePiece vocabulary: of two neighbours that make a token the best score goes first.

    As in SentencePiece, no merge makes a control token or the token of a byte.
    """
    scores = read_scores(metadata, vocabulary)
    if len(set(scores)) == 1:
        logger.warning(
            "%s: all tokens have the same score, as of a converter that had no SentencePiece model; the token of the "
            "lowest id is merged first, which may differ from llama.cpp",
            vocabulary.source,
        )
    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=_merges_by_score(vocabulary, scores),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    space, parts = "\u2581", [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    normalizer = normalizers.Replace(" ", space)
    backend.normalizer = normalizer
    if flag(metadata, "add_space_prefix", True, vocabulary.source):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(space), normalizer])
        parts.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(parts)
    return backend


def _merges_by_score(vocabulary: Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    whole = (CONTROL, UNKNOWN, BYTE)
    pieces = {token for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind not in whole}
    ids = np.array([i for i, kind in enumerate(vocabulary.types) if kind not in whole], dtype=np.int64)
    best_first = ids[np.argsort(-np.array(scores, dtype=np.float64)[ids], kind="stable")]
    return [
        (left, right)
        for token in map(vocabulary.tokens.__getitem__, best_first.tolist())
        for cut in range(1, len(token))
        if (left := token[:cut]) in pieces and (right := token[cut:]) in pieces
    ]


def _add_tokens(backend: Tokenizer, vocabulary: Vocabulary, model_name: str) -> None:
    """Let a backend find the control tokens and those that a user defined, each with its own id."""
    named = {token: kind for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind in _FOUND}
    strips = any(name in model_name.lower() for name in ("phi-3", "phi3"))  # llama.cpp's rule: Phi-3's take white space
    added = [
        AddedToken(
            token,
            normalized=False,
            special=kind != USER_DEFINED,
            rstrip=strips and token not in ("<unk>", "<s>", "<|endoftext|>"),
        )
        for token, kind in named.items()
    ]
    backend.add_tokens(added)
    for i, token in backend.get_added_tokens_decoder().items():
        if i >= len(vocabulary.tokens) or vocabulary.tokens[i] != token.content:
            raise ModelFileError(
                f"{vocabulary.source}: {token.content!r} has id {vocabulary.ids.get(token.content)} in the file, "
                f"and {i} in the tokenizer"
            )


_FOUND = (CONTROL, USER_DEFINED, UNKNOWN)


def _frame(
    metadata: Mapping[str, Any], vocabulary: Vocabulary, roles: Mapping[str, int | None], adds_bos: bool
) -> processors.TemplateProcessing:
    """Return what puts a beginning and an end of text around a text.

    Raises:
        ModelFileError: if the file wants one that it does not name.
    """
    parts = {"bos": flag(metadata, "add_bos_token", adds_bos, vocabulary.source), "text": True}
    parts["eos"] = flag(metadata, "add_eos_token", False, vocabulary.source)
    for role in ("bos", "eos"):
        if parts[role] and roles[role] is None:
            if f"{PREFIX}add_{role}_token" in metadata:
                raise ModelFileError(
                    f"{vocabulary.source}: {PREFIX}add_{role}_token is true, but there is no {PREFIX}{role}_token_id"
                )
            parts[role] = False
    template = ["$A" if part == "text" else part for part, used in parts.items() if used]
    special = [
        {"id": role, "ids": [i], "tokens": [vocabulary.tokens[i]]}
        for role, i in roles.items()
        if role in ("bos", "eos") and i is not None
    ]
    pair = template + [part.replace("$A", "$B") for part in template]
    return processors.TemplateProcessing(single=template, pair=pair, special_tokens=special)


def _templates(metadata: Mapping[str, Any], source: str) -> str | dict[str, str] | None:
    """Return the chat template, or templates by name if the file has several."""
    templates = {
        key.removeprefix(_TEMPLATE).lstrip(".") or "default": value
        for key, value in metadata.items()
        if key == _TEMPLATE or key.startswith(f"{_TEMPLATE}.")
    }
    for name, template in templates.items():
        if not isinstance(template, str):
            raise ModelFileError(f"{source}: {_TEMPLATE} {name}: expected a text, got {shown(template)}")
    return templates.get("default") if templates.keys() <= {"default"} else templates
