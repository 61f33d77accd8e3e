"""TextEncoder: text to token ids, piece by piece, so that equal text gives equal tokens and prefixes match."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastreader.core.checks import check_tokens
from fastreader.core.protocol import TextOrTokens
from fastreader.errors import FastreaderError, InputError, UnsupportedModelError

_ANCHORS = ("\n", "\n\n", "a\n", ".")
_USER, _ASSISTANT = "fastreader\u241euser", "fastreader\u241eassistant"


@dataclass(frozen=True)
class ChatFrame:
    """What a chat template puts around one user message and its answer.

    Attributes:
        before: text up to the user's message.
        between: from the end of the user's message to the start of the answer.
        space: white space that the template puts before an answer, as Llama-2's does; most put none.
        after: what ends the answer.
    """

    before: str
    between: str
    space: str
    after: str


class TextEncoder:
    """A tokenizer, asked for pieces of a text.

    Each piece is tokenised alone: "a" + "b" gives the tokens of "a" followed by those of "b", whatever
    merges the joint text would allow. Where the tokenizer puts a space before every text (SentencePiece), a
    piece inside a text is encoded behind an anchor whose tokens are then taken off.

    In text that is not trusted, these stay plain text however they are written: the tokenizer's special tokens,
    and those added tokens not marked special that its chat template writes (DeepSeek's ``<｜User｜>``). Other
    added tokens, such as runs of spaces, are read as the model was trained to read them. Tokenizers without
    a Rust backend are asked for the same, as far as they heed ``split_special_tokens``.

    It may be shared between threads.

    Args:
        tokenizer: a transformers tokenizer; it is not changed, texts are encoded with a copy.

    Raises:
        InputError: `tokenizer` is none.
        UnsupportedModelError: its pieces cannot be told apart.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not callable(tokenizer) or not hasattr(tokenizer, "bos_token_id"):
            raise InputError(f"tokenizer: expected a transformers tokenizer, got {type(tokenizer).__name__}")
        self.tokenizer = tokenizer
        # Whether special tokens are read is a state of the Rust tokenizer, hence the copy and the lock.
        self._own = _private_copy(tokenizer)
        self._lock = threading.Lock()
        self.bos = self._leading_special()
        self._anchors = self._find_anchors()

    def piece(self, text: str, *, first: bool = False, trusted: bool = False) -> list[int]:
        """Token ids of one piece.

        Args:
            text: any text; "" gives no tokens.
            first: whether it starts the whole text.
            trusted: read special tokens written out in the text as such. For text from outside leave it off,
                so that a passage cannot end the user's turn.
        """
        if not text:
            return []
        if first or not self._anchors:
            return self._encode(text, trusted)
        for anchor in self._anchors:
            alone = self._encode(anchor, trusted)
            tokens = self._encode(anchor + text, trusted)
            if tokens[: len(alone)] == alone:
                return tokens[len(alone) :]
        raise FastreaderError(
            f"the tokenizer merges {', '.join(map(repr, self._anchors))} with the text after it, so this piece "
            f"cannot be encoded alone: {text[:60]!r}"
        )

    def start(self, text: str, *, trusted: bool = False) -> list[int]:
        """Token ids of the piece that starts a prompt, with a beginning-of-text token where the model wants one."""
        tokens = self.piece(text, first=True, trusted=trusted)
        return tokens if tokens[: len(self.bos)] == self.bos else self.bos + tokens

    def prompt_tokens(self, prompt: TextOrTokens, name: str = "prompt") -> Sequence[int]:
        """Return the token ids of a prompt given as text or as token ids; an empty one is a beginning of text.

        Raises:
            InputError: if `prompt` is neither; the message starts with `name`.
        """
        if isinstance(prompt, str):
            try:
                return self.start(prompt, trusted=True) or [self.prefix_token()]
            except InputError as error:
                raise InputError(f"{name}: {error}") from error
        check_tokens(name, prompt)
        return prompt if len(prompt) else [self.prefix_token()]

    def text(self, tokens: Sequence[int]) -> str:
        """The text of token ids that a model wrote, special tokens left out."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def prefix_token(self) -> int:
        """What an empty context is scored behind: beginning of text, else end of text.

        Raises:
            UnsupportedModelError: the tokenizer has neither.
        """
        if (token := self._prefix_token()) is None:
            raise UnsupportedModelError(
                "the tokenizer has neither a beginning nor an end of text to score a text behind"
            )
        return token

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Token ids of a (context, continuation) text pair by the evaluation harness's rule.

        White space at the end of the context moves to the continuation; both are tokenised jointly and split
        at the length of the context's own tokens. An empty context is the beginning (else end) of text.

        Raises:
            InputError: the continuation is empty, or vanishes in joint tokenisation.
        """
        if not continuation:
            raise InputError("continuation: expected text to score, got ''")
        if not context:
            tokens = self._encode(continuation, trusted=True)
            prefix = self.prefix_token()
            if tokens[0] == prefix:
                return self._checked_pair(context, continuation, tokens[:1], tokens[1:])
            return [prefix], tokens
        spaces = len(context) - len(context.rstrip())
        if spaces:
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        if not context:
            return self.pair("", continuation)
        whole = self.start(context + continuation, trusted=True)
        head = self.start(context, trusted=True)
        return self._checked_pair(context, continuation, head, whole[len(head) :])

    def chat_frame(self, system: str | None, options: dict[str, Any], *, own_lead: bool = False) -> ChatFrame | None:
        """What the model's chat template puts around a user message; None where it has no template.

        Args:
            system: a system message, or None for what the template does without one.
            options: further variables of the template, such as ``enable_thinking``.
            own_lead: the caller writes what leads from the template's generation prompt to the answer, so the
                two need not fit.

        Raises:
            InputError: the template refuses the system message or the options, or is broken.
            UnsupportedModelError: the template changes or drops the message, or its generation prompt is not
                what stands before an answer: it opens the model's thinking, or leaves the turn unopened.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            return None
        head = [{"role": "system", "content": system}] if system is not None else []
        asked = [*head, {"role": "user", "content": _USER}]
        told = [*asked, {"role": "assistant", "content": _ASSISTANT}]
        opening = self._render(asked, options, generation=True)
        closing = self._render(told, options, generation=False)
        if any(text.count(_USER) != 1 for text in (opening, closing)) or closing.count(_ASSISTANT) != 1:
            raise UnsupportedModelError("the chat template does not keep the user's message as it is; use chat=False")
        before, between = opening.split(_USER)
        answered, after = closing.split(_USER)[1].split(_ASSISTANT)
        space = answered.removeprefix(between)
        if space.strip() or not answered.startswith(between):
            if not own_lead:
                raise UnsupportedModelError(
                    f"the chat template opens an answer with {between!r}, but writes {answered!r} before a given one. "
                    'Where this is the model\'s thinking, switch it off, as by chat_options={"enable_thinking": False} '
                    "if the template heeds it; else write what leads to the answer as Template.answer_lead, "
                    "or use chat=False"
                )
            space = ""
        return ChatFrame(before, between, space, after.rstrip())

    def _render(self, messages: list[dict[str, str]], options: dict[str, Any], *, generation: bool) -> str:
        from jinja2 import TemplateError

        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=generation, **options
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise InputError(
                "Template.system, Template.chat_options: the model's chat_template cannot be applied with "
                f"{'no' if len(messages) < 2 or messages[0]['role'] != 'system' else 'a'} system message and options "
                f"{options} ({type(error).__name__}: {error})"
            ) from error
        return str(text)

    @staticmethod
    def _checked_pair(context: str, continuation: str, head: list[int], tail: list[int]) -> tuple[list[int], list[int]]:
        if not tail:
            raise InputError(
                f"continuation: {continuation[:60]!r} has no token of its own after {context[-60:]!r}; "
                "the tokenizer merges it into the context"
            )
        return head, tail

    def _prefix_token(self) -> int | None:
        for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return int(token)
        return None

    def _encode(self, text: str, trusted: bool, special: bool = False) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"expected text that UTF-8 can hold, got half a surrogate pair at character {error.start} of "
                f"{text[:60]!r}"
            ) from error
        with self._lock:
            tokens = self._own(text, add_special_tokens=special, split_special_tokens=not trusted)["input_ids"]
        return [int(t) for t in tokens]

    def _leading_special(self) -> list[int]:
        with_special = self._encode("x", trusted=True, special=True)
        plain = self._encode("x", trusted=True)
        for start in range(len(with_special) - len(plain) + 1):
            if with_special[start : start + len(plain)] == plain:
                return with_special[:start]
        return []

    def _find_anchors(self) -> tuple[str, ...]:
        """None of them where a text's tokens do not depend on whether it starts the text."""
        plain = self._encode("a", trusted=False)
        alone = {anchor: self._encode(anchor, trusted=False) for anchor in _ANCHORS}
        followed = {anchor: self._encode(anchor + "a", trusted=False) for anchor in _ANCHORS}
        if any(followed[anchor] == alone[anchor] + plain for anchor in _ANCHORS):
            return ()
        apart = tuple(a for a in _ANCHORS if followed[a][: len(alone[a])] == alone[a])
        if not apart:
            raise UnsupportedModelError("no anchor text stays apart from what follows it in this tokenizer")
        return apart


def _private_copy(tokenizer: Any) -> Any:
    """A copy to encode with, in which the added tokens that the chat template writes count as special."""
    own = copy.deepcopy(tokenizer)
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
