"""TextEncoder: text to token ids piece by piece, so that equal text gives equal tokens and prefixes match."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastreader.core.checks import check_tokens, check_utf8, expect, located, rejecting, require
from fastreader.core.forks import repair_in_children
from fastreader.core.protocol import TextOrTokens
from fastreader.errors import FastreaderError, InputError, UnsupportedModelError
from fastreader.reader.prompts.chat_template import render_chat

_TOGETHER = 200_000  # bytes of texts that are encoded in one call
_REMEMBERED = 512  # texts of templates whose tokens are kept
logger = logging.getLogger(__name__)
_DRAWS = ("dropout", "alpha", "nbest_size")  # settings of a tokenizer's model that are for training
_ANCHORS = ("\n", "\n\n", "a\n", ".")
_USER, _ASSISTANT = "fastreader\u241euser", "fastreader\u241eassistant"


@dataclass(frozen=True)
class Seam:
    """The end of an unfinished text: token ids up to its last special token, and the plain text after that.

    Attributes:
        tokens: ids that no later text changes.
        tail: plain text, encoded together with what follows it.
        fresh: whether the tail is encoded like the start of a text, as some tokenizers do after a special token.
        takes_space: whether the special token takes the white space after it.
    """

    tokens: tuple[int, ...] = ()
    tail: str = ""
    fresh: bool = True
    takes_space: bool = False


@dataclass(frozen=True)
class ChatFrame:
    """What a chat template puts around one user message and its answer.

    Attributes:
        before: text up to the user's message.
        between: from the end of the user's message to the start of the answer.
        space: white space that the template puts before an answer, as Llama-2's does; most put none.
        after: what ends the answer.
        opening: `before`, encoded up to where the message joins it.
        fresh: whether the first text after `between` is encoded like the start of a text.
    """

    before: str
    between: str
    space: str
    after: str
    opening: Seam
    fresh: bool


class TextEncoder:
    """A tokenizer that encodes a text piece by piece.

    Each piece is tokenised alone: "a" + "b" gives the tokens of "a" followed by the tokens of "b", whatever
    merges the joint text would allow. If the tokenizer puts a space before every text (SentencePiece), a
    piece inside a text is encoded behind an anchor whose tokens are then removed.

    In untrusted text these stay plain text however they are written: the tokenizer's special tokens,
    and those added tokens not marked special that its chat template writes (DeepSeek's ``<｜User｜>``). Other
    added tokens, such as runs of spaces, are read as the model was trained to read them. Tokenizers without
    a Rust backend do the same as far as they honour ``split_special_tokens``.

    Safe to share between threads.

    Args:
        tokenizer: a transformers tokenizer; it is not changed, texts are encoded with a copy.

    Raises:
        InputError: if `tokenizer` is not a transformers tokenizer.
        UnsupportedModelError: if its pieces cannot be separated, or it is mistral-common's.
    """

    def __init__(self, tokenizer: Any) -> None:
        usable = callable(tokenizer) and hasattr(tokenizer, "bos_token_id")
        expect(usable, "tokenizer", "a transformers tokenizer", tokenizer)
        if any(kind.__name__ == "MistralCommonBackend" for kind in type(tokenizer).__mro__):
            raise UnsupportedModelError(
                "tokenizer: mistral-common's cannot read special tokens in a text as plain text; use a folder with a "
                "tokenizer.json, or AutoTokenizer.from_pretrained(folder, mistral_format=False) in a pair"
            )
        self.tokenizer = tokenizer
        # Whether special tokens are read is a state of the Rust tokenizer, hence the copy and the lock.
        self._own = _private_copy(tokenizer)
        self.after_fork()
        repair_in_children(self)
        self._trusted: dict[str, list[int]] = {}  # the few texts of templates
        self._frames: dict[tuple[str, str | None, str, bool], ChatFrame] = {}
        added = getattr(self._own, "added_tokens_decoder", {})
        self.special = {token.content: i for i, token in added.items() if token.special and token.content}
        self._marks = {token.content: token for token in added.values()}
        by_length = sorted(self.special, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, by_length)) or r"(?!)")
        self.special_in = self._special.search
        self.bos = self._leading_special()
        self._anchors = self._find_anchors()
        self._fresh = self._starts_again()
        self._warned = False

    def after_fork(self) -> None:
        """Replace the lock, which a thread that a forked child does not have may hold."""
        self._lock = threading.Lock()

    def piece(self, text: str, *, first: bool = False, trusted: bool = False, keep: bool = True) -> list[int]:
        """Return the token ids of one piece.

        Args:
            text: any text; "" gives no tokens.
            first: whether it starts the whole text.
            trusted: read special tokens written out in the text as such. Leave it off for text from outside, so that
                a passage cannot end the user's turn.
            keep: remember the tokens of a trusted text, since prompts repeat the texts of a template.
        """
        if not text:
            return []
        if first or not self._anchors:
            if not (trusted and keep):
                return self._encode([text], trusted)[0]
            if text not in self._trusted:
                if len(self._trusted) >= _REMEMBERED:
                    self._trusted.clear()
                self._trusted[text] = self._encode([text], trusted=True)[0]
            return list(self._trusted[text])
        return self._behind_anchor(text, trusted)

    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of many pieces from outside, none of which starts the whole text."""
        if self._anchors:
            return [self._behind_anchor(text, False) if text else [] for text in texts]
        return self._encode(texts) if texts else []

    def _behind_anchor(self, text: str, trusted: bool) -> list[int]:
        for anchor in self._anchors:
            alone, tokens = self._encode([anchor, anchor + text], trusted)
            if tokens[: len(alone)] == alone:
                return tokens[len(alone) :]
        raise FastreaderError(
            f"the tokenizer merges {', '.join(map(repr, self._anchors))} with the text after it, so this piece "
            f"cannot be encoded alone: {text[:60]!r}"
        )

    def follow(self, seam: Seam, text: str, *, trusted: bool = False) -> Seam:
        """Return the seam after `text`, which continues the text before `seam`.

        Args:
            seam: `Seam()` is the start of a text without a beginning of text.
            text: any text.
            trusted: see `piece`.
        """
        tokens, place = list(seam.tokens), 0
        tail, fresh, takes_space = seam.tail, seam.fresh, seam.takes_space
        for found in self._special.finditer(text) if trusted else ():
            mark = self._marks[found.group()]
            plain = tail + text[place : found.start()]
            plain = plain.lstrip() if takes_space else plain
            tokens += self.piece(plain.rstrip() if mark.lstrip else plain, first=fresh)
            tokens.append(self.special[mark.content])
            place, tail, fresh, takes_space = found.end(), "", self._fresh, mark.rstrip
        return Seam(tuple(tokens), tail + text[place:], fresh, takes_space)

    def closed(self, seam: Seam, text: str = "", *, trusted: bool = False) -> list[int]:
        """Return the token ids of the text up to `seam` and of `text` after it, see `follow`."""
        if trusted and self.special_in(text):
            seam, text = self.follow(seam, text, trusted=True), ""
        tail = seam.tail + text
        return [*seam.tokens, *self.piece(tail.lstrip() if seam.takes_space else tail, first=seam.fresh)]

    def start(self, text: str, *, trusted: bool = False, keep: bool = True) -> list[int]:
        """Return the token ids of the piece that starts a prompt, after a beginning of text if the model wants one."""
        tokens = self.piece(text, first=True, trusted=trusted, keep=keep)
        return tokens if tokens[: len(self.bos)] == self.bos else self.bos + tokens

    def around_pair(self) -> tuple[list[int], list[int], list[int]]:
        """Return the special tokens that the tokenizer puts before, between and after the two texts of a pair.

        Raises:
            UnsupportedModelError: if it joins them otherwise.
        """
        with self._lock:
            joined = list(self._own("x", "y", add_special_tokens=True, split_special_tokens=False)["input_ids"])
        one, other = self._encode(["x", "y"])
        for start in range(len(joined) - len(one) - len(other) + 1):
            if joined[start : start + len(one)] != one:
                continue
            for then in range(start + len(one), len(joined) - len(other) + 1):
                if joined[then : then + len(other)] == other:
                    return joined[:start], joined[start + len(one) : then], joined[then + len(other) :]
        raise UnsupportedModelError("tokenizer: it joins the two texts of a pair by other tokens than their own")

    def prompt_tokens(
        self, prompt: TextOrTokens, name: str = "prompt", *, special_tokens: bool = False
    ) -> Sequence[int]:
        """Return the token ids of a prompt given as text or as token ids, a beginning of text if it is empty.

        Args:
            prompt: text or token ids.
            name: of the argument, for messages.
            special_tokens: whether special tokens written out in a text are read as such.

        Raises:
            InputError: if `prompt` is neither; the message starts with `name`.
        """
        if isinstance(prompt, str):
            if not (special_tokens or self._warned) and (found := self.special_in(prompt)):
                self._warned = True
                logger.warning(
                    "%s: %r is read as plain text; a conversation in the chat template needs special_tokens=True",
                    name,
                    found.group(),
                )
            with located(name):
                return self.start(prompt, trusted=special_tokens, keep=False) or [self.prefix_token()]
        check_tokens(name, prompt)
        return prompt if len(prompt) else [self.prefix_token()]

    def text(self, tokens: Sequence[int], *, special_tokens: bool = False) -> str:
        """Return the text of token ids that a model generated, special tokens included if `special_tokens`."""
        skipped = not special_tokens
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=skipped, clean_up_tokenization_spaces=False))

    def prefix_token(self) -> int:
        """Return the token that precedes a text without context: beginning of text, else end of text.

        Raises:
            UnsupportedModelError: if the tokenizer has neither.
        """
        for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return int(token)
        raise UnsupportedModelError("the tokenizer has neither a beginning nor an end of text to score a text behind")

    def pair(self, context: str, continuation: str, *, special_tokens: bool = True) -> tuple[list[int], list[int]]:
        """Return the token ids of a (context, continuation) text pair, all of the continuation in the second list.

        White space at the end of the context moves to the continuation. As in the evaluation harness both are tokenised
        jointly and split at the end of the context's own tokens. If the continuation would begin inside a token, of
        which the harness scores only what follows the token, the two are tokenised apart. An empty context is the
        beginning (else end) of text.

        Args:
            context, continuation: the texts.
            special_tokens: whether special tokens written out in them are read as such, which is the harness's rule.

        Raises:
            InputError: if the continuation is empty or has no token.
        """
        expect(bool(continuation), "continuation", "text to score", continuation)
        spaces = len(context) - len(context.rstrip())
        if spaces:
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        if context:
            tokens = self.start(context + continuation, trusted=special_tokens, keep=False)
            head = self.start(context, trusted=special_tokens, keep=False)
        else:
            tokens = self._encode([continuation], trusted=special_tokens)[0]
            head = [self.prefix_token()]
        if not context:
            tail = tokens[1:] if tokens[:1] == head else tokens
        elif len(tokens) > len(head) and tokens[: len(head)] == head:
            tail = tokens[len(head) :]
        else:
            if self._anchors:
                tail = self._behind_anchor(continuation, special_tokens)
            else:
                tail = self._encode([continuation], special_tokens)[0]
        require(bool(tail), f"continuation: {continuation[:60]!r} has no token")
        return head, tail

    def chat_frame(self, system: str | None, options: dict[str, Any], *, own_lead: bool = False) -> ChatFrame | None:
        """Return what the model's chat template puts around a user message, or None without a template.

        Args:
            system: a system message; None uses the template's default.
            options: further variables of the template, such as ``enable_thinking``.
            own_lead: whether the caller writes what leads from the template's generation prompt to the answer, so that
                the two need not fit.

        Raises:
            InputError: if the template rejects the system message or the options, or is broken.
            UnsupportedModelError: if the template changes or drops the message, or its generation prompt does not
                precede an answer directly: it opens the model's thinking, or leaves the turn unopened.
        """
        chat_template = getattr(self.tokenizer, "chat_template", None)
        if not chat_template:
            return None
        if "strftime_now" in str(chat_template):  # it writes today's date
            return self._make_frame(system, options, own_lead)
        key = (str(chat_template), system, json.dumps(options, sort_keys=True, default=repr), own_lead)
        if key not in self._frames:
            if len(self._frames) >= _REMEMBERED:
                self._frames.clear()
            self._frames[key] = self._make_frame(system, options, own_lead)
        return self._frames[key]

    def _make_frame(self, system: str | None, options: dict[str, Any], own_lead: bool) -> ChatFrame:
        head = [{"role": "system", "content": system}] if system is not None else []
        asked = [*head, {"role": "user", "content": _USER}]
        answered_by = [*asked, {"role": "assistant", "content": _ASSISTANT}]
        opening = self._render(asked, options, generation=True)
        closing = self._render(answered_by, options, generation=False)
        if any(text.count(_USER) != 1 for text in (opening, closing)) or closing.count(_ASSISTANT) != 1:
            raise UnsupportedModelError("the chat template does not keep the user's message as it is; use chat=False")
        before, between = opening.split(_USER)
        answered, after = closing.split(_USER)[1].split(_ASSISTANT)
        space = answered.removeprefix(between)
        if space.strip() or not answered.startswith(between):
            if not own_lead:
                raise UnsupportedModelError(
                    f"the chat template opens an answer with {between!r}, but writes {answered!r} before a given one. "
                    'If this is the model\'s thinking, switch it off (chat_options={"enable_thinking": False}, if the '
                    "template supports it), set Template.answer_lead to what precedes the answer, or use chat=False"
                )
            space = ""
        lead = self.follow(Seam(), before, trusted=True)
        answer = self.follow(Seam(fresh=False), between, trusted=True)
        fresh = answer.fresh and not (answer.tail.strip() if answer.takes_space else answer.tail)
        return ChatFrame(before, between, space, after.rstrip(), lead, fresh)

    def _render(self, messages: list[dict[str, str]], options: dict[str, Any], *, generation: bool) -> str:
        names = "Template.system, Template.chat_options"
        system = "a" if len(messages) > 1 and messages[0]["role"] == "system" else "no"
        given = f"{system} system message and options {options}"
        with rejecting(f"{names}: the model's chat_template cannot be applied with {given}", InputError):
            return render_chat(self.tokenizer, messages, options, generation=generation)

    def _encode(self, texts: Sequence[str], trusted: bool = False, special: bool = False) -> list[list[int]]:
        for text in texts:
            if not text.isascii():
                check_utf8(text)
        tokens: list[list[int]] = []
        try:
            with self._lock:
                for part in in_parts(texts):
                    tokens += self._own(part, add_special_tokens=special, split_special_tokens=not trusted)["input_ids"]
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust, which is no Exception
                raise
            raise UnsupportedModelError(f"the tokenizer failed ({error}); its tokenizer.json may be damaged") from error
        return tokens

    def _leading_special(self) -> list[int]:
        with_special = self._encode(["x"], trusted=True, special=True)[0]
        plain = self._encode(["x"], trusted=True)[0]
        for start in range(len(with_special) - len(plain) + 1):
            if with_special[start : start + len(plain)] == plain:
                return with_special[:start]
        return []

    def _starts_again(self) -> bool:
        """Return whether text after a special token is encoded like the start of a text."""
        [plain] = self._encode(["a"])
        return any(self._encode([mark + "a"], trusted=True)[0] == [i, *plain] for mark, i in self.special.items())

    def _find_anchors(self) -> tuple[str, ...]:
        """Return texts that stay apart from what follows, or none if tokens do not depend on their place."""
        plain, *rest = self._encode(["a", *_ANCHORS, *(anchor + "a" for anchor in _ANCHORS)])
        alone = dict(zip(_ANCHORS, rest, strict=False))
        followed = dict(zip(_ANCHORS, rest[len(_ANCHORS) :], strict=True))
        if any(followed[anchor] == alone[anchor] + plain for anchor in _ANCHORS):
            return ()
        apart = tuple(a for a in _ANCHORS if followed[a][: len(alone[a])] == alone[a])
        if not apart:
            raise UnsupportedModelError("no anchor text stays apart from what follows it in this tokenizer")
        return apart


def in_parts(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield the texts in lists of limited size, since a tokenizer takes a hundred times the memory of a text."""
    part: list[str] = []
    size = 0
    for text in texts:
        length = len(text) if text.isascii() else len(text.encode(errors="replace"))
        if part and size + length > _TOGETHER:
            yield part
            part, size = [], 0
        part.append(text)
        size += length
    if part:
        yield part


def _private_copy(tokenizer: Any) -> Any:
    """Return a copy to encode with, in which the added tokens that the chat template writes count as special."""
    backend = _beside(getattr(tokenizer, "_tokenizer", None))
    own = copy.deepcopy(tokenizer, {} if backend is None else {id(tokenizer._tokenizer): backend})
    backend = getattr(own, "_tokenizer", None)
    templates = getattr(own, "chat_template", None) or ""
    written = "".join(templates.values()) if isinstance(templates, dict) else str(templates)
    marks = [
        token
        for token in getattr(own, "added_tokens_decoder", {}).values()
        if not token.special and token.content in written and not token.content.isalnum() and token.content.strip()
    ]
    if marks and backend is not None:
        for token in marks:
            token.special = True
        backend.add_special_tokens(marks)
    return own


def _beside(backend: Any) -> Any:
    """Return a Rust tokenizer that shares the vocabulary and merges of another, which are most of its memory.

    Added tokens and every setting are its own. None if the other is no such tokenizer.
    """
    from tokenizers import Tokenizer, models  # not needed to read and plan

    if not isinstance(backend, Tokenizer):
        return None
    settings = Tokenizer(models.BPE())
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if (theirs := getattr(backend, part)) is not None:
            setattr(settings, part, theirs)
    own = Tokenizer.from_str(settings.to_str())
    own.model = backend.model if not _draws(backend.model) else _without_draws(backend.model)
    added = backend.get_added_tokens_decoder()
    for special, tokens in itertools.groupby((added[i] for i in sorted(added)), lambda token: token.special):
        (own.add_special_tokens if special else own.add_tokens)(list(tokens))
    if moved := added.items() - own.get_added_tokens_decoder().items():
        raise UnsupportedModelError(f"a copy of its tokenizer gives added tokens other ids: {sorted(moved)[:3]}")
    return own


def _draws(model: Any) -> bool:
    """Return whether a tokenizer's model draws how it splits a text (BPE dropout, sampling of Unigram)."""
    return any(getattr(model, name, None) is not None for name in _DRAWS)


def _without_draws(model: Any) -> Any:
    """Return a copy of a tokenizer's model that splits equal texts alike."""
    own = copy.deepcopy(model)
    for name in _DRAWS:
        if hasattr(own, name):
            setattr(own, name, None)
    return own
