"""TextEncoder: text to token ids, piece by piece, so that equal text gives equal tokens and prefixes match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastreader.errors import FastreaderError, InputError, UnsupportedModelError

_ANCHORS = ("\n", "\n\n", "a\n", ".")
_USER, _ASSISTANT = "fastreader\u241euser", "fastreader\u241eassistant"


@dataclass(frozen=True)
class ChatFrame:
    """What a chat template puts around one user message and its answer.

    Attributes:
        before: text up to the user's message.
        between: from the end of the user's message to the start of the answer.
        after: what ends the answer.
    """

    before: str
    between: str
    after: str


class TextEncoder:
    """A tokenizer, asked for pieces of a text.

    Each piece is tokenised alone: "a" + "b" gives the tokens of "a" followed by those of "b", whatever
    merges the joint text would allow. Where the tokenizer puts a space before every text (SentencePiece), a
    piece inside a text is encoded behind an anchor whose tokens are then taken off.

    Args:
        tokenizer: a transformers tokenizer; it is not changed.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.bos = self._leading_special()
        self._anchor = self._find_anchor()

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
        if first or self._anchor is None:
            return self._encode(text, trusted)
        anchor = self._encode(self._anchor, trusted)
        tokens = self._encode(self._anchor + text, trusted)
        if tokens[: len(anchor)] != anchor:
            raise FastreaderError(
                f"the tokenizer merges {self._anchor!r} with the text after it, so this piece cannot be encoded "
                f"alone: {text[:60]!r}"
            )
        return tokens[len(anchor) :]

    def start(self, text: str, *, trusted: bool = False) -> list[int]:
        """Token ids of the piece that starts a prompt, with a beginning-of-text token where the model wants one."""
        tokens = self.piece(text, first=True, trusted=trusted)
        return tokens if tokens[: len(self.bos)] == self.bos else self.bos + tokens

    def prefix_token(self) -> int:
        """What an empty context is scored behind: beginning of text, else end of text.

        Raises:
            UnsupportedModelError: the tokenizer has neither.
        """
        for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return int(token)
        raise UnsupportedModelError("the tokenizer has neither a beginning nor an end of text to score a text behind")

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
        whole = self._encode_with_special(context + continuation)
        head = self._encode_with_special(context)
        return self._checked_pair(context, continuation, head, whole[len(head) :])

    def chat_frame(self, system: str | None, options: dict[str, Any]) -> ChatFrame | None:
        """What the model's chat template puts around a user message; None where it has no template.

        Args:
            system: a system message, or None for what the template does without one.
            options: further variables of the template, such as ``enable_thinking``.

        Raises:
            UnsupportedModelError: the template changes or drops the message.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            return None
        head = [{"role": "system", "content": system}] if system is not None else []
        asked = [*head, {"role": "user", "content": _USER}]
        told = [*asked, {"role": "assistant", "content": _ASSISTANT}]
        opening = self._render(asked, options, generation=True)
        closing = self._render(told, options, generation=False)
        if opening.count(_USER) != 1 or closing.count(_ASSISTANT) != 1:
            raise UnsupportedModelError("the chat template does not keep the user's message as it is; use chat=False")
        before, between = opening.split(_USER)
        return ChatFrame(before, between, closing.split(_ASSISTANT)[1].rstrip())

    def _render(self, messages: list[dict[str, str]], options: dict[str, Any], *, generation: bool) -> str:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation, **options)
        return str(text)

    @staticmethod
    def _checked_pair(context: str, continuation: str, head: list[int], tail: list[int]) -> tuple[list[int], list[int]]:
        if not tail:
            raise InputError(
                f"continuation: {continuation[:60]!r} has no token of its own after {context[-60:]!r}; "
                "the tokenizer merges it into the context"
            )
        return head, tail

    def _encode(self, text: str, trusted: bool) -> list[int]:
        tokens = self.tokenizer(text, add_special_tokens=False, split_special_tokens=not trusted)["input_ids"]
        return [int(t) for t in tokens]

    def _encode_with_special(self, text: str) -> list[int]:
        prefix = self.tokenizer.decode([self.prefix_token()])
        if text.startswith(prefix):
            return [int(t) for t in self.tokenizer(text, add_special_tokens=False)["input_ids"]]
        return [int(t) for t in self.tokenizer(text)["input_ids"]]

    def _leading_special(self) -> list[int]:
        with_special = [int(t) for t in self.tokenizer("x")["input_ids"]]
        plain = self._encode("x", trusted=True)
        for start in range(len(with_special) - len(plain) + 1):
            if with_special[start : start + len(plain)] == plain:
                return with_special[:start]
        return []

    def _find_anchor(self) -> str | None:
        """None where a text's tokens do not depend on whether it starts the text."""
        plain = self._encode("a", trusted=False)
        anchors = [a for a in _ANCHORS if self._stays_apart(a)]
        if any(self._encode(a + "a", False)[len(self._encode(a, False)) :] == plain for a in anchors):
            return None
        if not anchors:
            raise UnsupportedModelError("no anchor text stays apart from what follows it in this tokenizer")
        return anchors[0]

    def _stays_apart(self, anchor: str) -> bool:
        alone = self._encode(anchor, False)
        return all(self._encode(anchor + text, False)[: len(alone)] == alone for text in ("a", " a", "\na", "1"))
