"""The tokens that a GGUF file's metadata list, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastreader.core.checks import is_int, shown
from fastreader.errors import ModelFileError

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of tokens

# llama.cpp knows these by their text, whatever type the file gives them.
_ENDS = frozenset(
    [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "[e~[",
        "<｜end▁of▁sentence｜>",
    ]
)
# Roles around code that is filled in. If no key names the token of a role, the token of one of these texts has it.
_FILLED_IN = {
    "fim_pre": "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|>",
    "fim_suf": "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|>",
    "fim_mid": "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|>",
    "fim_pad": "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]",
    "fim_rep": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    "fim_sep": "<|file_sep|>",
}
_ENDING_ROLES = ("fim_pad", "fim_rep", "fim_sep")
_OLD_KEYS = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}
_CHANNELS = frozenset(("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"))


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a GGUF file.

    Attributes:
        source: name of the file, for messages.
        tokens: the text of each token id, all different.
        types: `NORMAL`, `CONTROL`, ... of each token id.
        ids: token ids by text.
        ends: token ids that end a turn or a text.
    """

    source: str
    tokens: list[str]
    types: list[int]
    ids: dict[str, int]
    ends: list[int]


def read_vocabulary(metadata: Mapping[str, Any], source: str) -> Vocabulary:
    """Return the tokens of a GGUF file with their types.

    Raises:
        ModelFileError: if the file lists no tokens, a token twice, or values of another kind or number.
    """
    tokens = array(metadata, "tokens", str, source)
    if not tokens:
        raise ModelFileError(f"{source}: {PREFIX}tokens: expected the tokens of the vocabulary, got none")
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        i = next(i for i, token in enumerate(tokens) if ids[token] != i)
        raise ModelFileError(f"{source}: {PREFIX}tokens: {tokens[i]!r} is both token {i} and token {ids[tokens[i]]}")
    types = [NORMAL] * len(tokens)
    if f"{PREFIX}token_type" in metadata:
        types = list(array(metadata, "token_type", int, source, len(tokens)))
    ended = {text: ids[text] for text in _ENDS if text in ids}
    if types[ended.get("</s>", 0)] != CONTROL:
        ended.pop("</s>", None)  # the end of text that is struck through, for instance Gemma's
    for i in ended.values():
        types[i] = CONTROL
    for role, texts in _FILLED_IN.items():
        named = any(f"{PREFIX}{name}_token_id" in metadata for name in (role, _OLD_KEYS.get(role, role)))
        if not named and (known := [text for text in texts.split() if text in ids]):
            types[ids[known[0]]] = CONTROL
            if role in _ENDING_ROLES:
                ended[known[0]] = ids[known[0]]
    for text in _CHANNELS & ids.keys():
        types[ids[text]] = USER_DEFINED
    # In gpt-oss's format a message ends with <|end|>, its turn with one of the others.
    if "<|end|>" in ended and (ended.keys() >= {"<|return|>", "<|call|>"} or _solar(ended)):
        types[ended.pop("<|end|>")] = USER_DEFINED
    ends = set(ended.values())
    for name in ("eos", "eot", "eom", *_ENDING_ROLES):
        if (end := token_id(metadata, name, len(tokens), source)) is not None:
            ends.add(end)
    if f"{PREFIX}eos_token_ids" in metadata:
        listed = array(metadata, "eos_token_ids", int, source)
        ends.update(checked_id(i, "eos_token_ids", len(tokens), source) for i in listed)
    return Vocabulary(source, tokens, types, ids, sorted(ends))


def _solar(ended: dict[str, int]) -> bool:
    return "<|flush|>" in ended and bool(ended.keys() & {"<|call|>", "<|calls|>"})


def array(metadata: Mapping[str, Any], name: str, kind: type, source: str, count: int | None = None) -> list[Any]:
    """Return the list under `tokenizer.ggml.NAME`, all of whose items are of `kind`.

    Raises:
        ModelFileError: if it is missing, an item is of another kind, or they are not `count`.
    """
    key = PREFIX + name
    if key not in metadata:
        raise ModelFileError(f"{source}: no {key}, without which there is no tokenizer")
    items = metadata[key]
    plain = isinstance(items, list) and set(map(type, items)) <= {kind}
    if not plain:
        raise ModelFileError(f"{source}: {key}: expected a list of {kind.__name__}, got {shown(items)}")
    if count is not None and len(items) != count:
        raise ModelFileError(f"{source}: {key}: expected {count} items, one for each token, got {len(items)}")
    found: list[Any] = items
    return found


def read_scores(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> list[float]:
    """Return the score of each token.

    Raises:
        ModelFileError: if the file has none, another number, or one that is not finite.
    """
    key, source = f"{PREFIX}scores", vocabulary.source
    kind = int if all(is_int(score) for score in (metadata.get(key) or [None])[:1]) else float
    scores = array(metadata, "scores", kind, source, len(vocabulary.tokens))
    if not all(map(math.isfinite, scores)):
        raise ModelFileError(f"{source}: {key}: expected finite numbers, got NaN or infinity")
    return scores


def read_merges(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return the pairs of tokens that are merged, the first first.

    Raises:
        ModelFileError: if the file has none, or a pair is not of tokens that make a token.
    """
    ids = vocabulary.ids
    pairs: dict[tuple[str, str], None] = {}
    for i, merge in enumerate(array(metadata, "merges", str, vocabulary.source)):
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if cut < 0 or left not in ids or right not in ids or left + right not in ids:
            raise ModelFileError(
                f"{vocabulary.source}: {PREFIX}merges: expected pairs of tokens that make a token, got {merge!r} at {i}"
            )
        pairs.setdefault((left, right), None)  # of equal pairs the first counts
    return list(pairs)


def token_id(metadata: Mapping[str, Any], name: str, count: int, source: str) -> int | None:
    """Return the token id under `tokenizer.ggml.NAME_token_id`, or None if the file has none.

    Raises:
        ModelFileError: if it is not the id of a token.
    """
    value = metadata.get(f"{PREFIX}{name}_token_id")
    return None if value is None else checked_id(value, f"{name}_token_id", count, source)


def checked_id(value: Any, name: str, count: int, source: str) -> int:
    """Return a token id of the metadata.

    Raises:
        ModelFileError: if it is not the id of a token.
    """
    if not is_int(value) or not 0 <= value < count:
        raise ModelFileError(f"{source}: {PREFIX}{name}: expected a token id below {count}, got {shown(value)}")
    return int(value)


def flag(metadata: Mapping[str, Any], name: str, default: bool, source: str) -> bool:
    """Return the boolean under `tokenizer.ggml.NAME`, or `default` if the file has none.

    Raises:
        ModelFileError: if it is not a boolean.
    """
    value = metadata.get(PREFIX + name, default)
    if not isinstance(value, bool):
        raise ModelFileError(f"{source}: {PREFIX}{name}: expected true or false, got {shown(value)}")
    return value
