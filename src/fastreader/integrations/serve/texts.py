"""Texts token by token: the part that each adds, and the part of a growing text that can be sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fastreader.reader.generation.text_so_far import cut

Decode = Callable[[Sequence[int]], str]
_UNFINISHED = "\ufffd"  # decoders return it for an incomplete character
_LONGEST = 32  # tokens of one character, beyond which the bytes are no text
BEFORE = 8  # tokens before a text, on which the text of its first token depends


class TokenTexts:
    """The text that each token adds to the decoded text before it, so that they join to the whole text.

    All of a character of several tokens belongs to its last token; the others add nothing. Each step decodes only the
    last tokens, since a token's text depends on the one before it.

    Args:
        decode: token ids to text.
        before: tokens that precede the first one, such as a prompt's.
    """

    def __init__(self, decode: Decode, before: Sequence[int] = ()) -> None:
        self._decode, self._tokens = decode, list(before[-BEFORE:])
        self._context, self._settled = 0, len(self._tokens)

    def add(self, token: int) -> str:
        """Return the text that a token adds."""
        self._tokens.append(token)
        known = self._decode(self._tokens[self._context : self._settled])
        new = self._decode(self._tokens[self._context :])[len(known) :]
        if new.endswith(_UNFINISHED) and len(self._tokens) - self._settled < _LONGEST:
            return ""
        if new:
            self._tokens = self._tokens[self._settled :]
            self._context, self._settled = 0, len(self._tokens)
        return new


def token_places(decode: Decode, text: str, tokens: Sequence[int], before: Sequence[int] = ()) -> list[tuple[str, int]]:
    """Return the text of each token and where it begins in `text`, in characters.

    Args:
        decode: token ids to text, special tokens included.
        text: the text of the tokens, perhaps without its special tokens or cut at its end; those tokens have no text.
        tokens: token ids.
        before: tokens before them, which are not in `text`.
    """
    texts, at, places = TokenTexts(decode, before), 0, []
    for i, token in enumerate(tokens):
        own, rest = texts.add(token), text[at:]
        if i == len(tokens) - 1 and not own:  # an unfinished character at the end
            own = rest if set(rest) == {_UNFINISHED} else own
        if not rest.startswith(own):
            own = rest if own.startswith(rest) else ""
        places.append((own, at))
        at += len(own)
    return places


def leading_space(decode: Decode, tokens: Sequence[int], before: Sequence[int]) -> str:
    """Return the space that a text has behind the tokens before it but not by itself, as in SentencePiece."""
    if not tokens:
        return ""
    behind, alone = TokenTexts(decode, before).add(tokens[0]), decode(tokens[:1])
    return " " if behind == " " + alone else ""


class GrowingText:
    """A text that is generated, of which all is sent that no later token can change or cut off.

    Args:
        decode: token ids to text, without special tokens.
        stop: strings that end the text.
        before: tokens before the text.
        whole: whether to hold the text back until it is finished.

    Attributes:
        tokens: number of tokens so far.
        sent: number of tokens whose text was sent.
    """

    def __init__(self, decode: Decode, stop: Sequence[str], before: Sequence[int], *, whole: bool = False) -> None:
        self._texts, self._stop, self._whole = TokenTexts(decode, before), stop, whole
        self._text, self._length = "", 0  # so far, and the characters of it that were sent
        self._places: list[tuple[str, int]] = []
        self._settled = 0  # tokens up to the last that has a text
        self.tokens, self.sent = 0, 0

    def grow(self, tokens: Iterable[int]) -> tuple[str, list[tuple[str, int]]]:
        """Add tokens, and return the text that can be sent now, and the text and place of each token that is in it."""
        for token in tokens:
            own = self._texts.add(token)
            self._places.append((own, len(self._text)))
            self._text += own
            self.tokens += 1
            self._settled = self.tokens if own else self._settled
        first = max(0, self._length - max(map(len, self._stop), default=0))
        shortened = cut(self._text[first:], self._stop)
        ready = len(self._text) if shortened is None else first + len(shortened)
        safe = self._length if self._whole else ready
        if shortened is None:
            for stop in self._stop:
                for length in range(1, min(len(stop), ready + 1)):
                    if self._text.endswith(stop[:length]):
                        safe = min(safe, ready - length)
        return self._send(self._text, max(safe, self._length), self._settled)

    def end(self, text: str) -> tuple[str, list[tuple[str, int]]]:
        """Return the rest of the finished text, and the text and place of each token that was not sent."""
        if self._places and not self._places[-1][0]:  # perhaps an unfinished character at the end
            rest = text[self._places[-1][1] :]
            self._places[-1] = (rest if set(rest) == {_UNFINISHED} else "", self._places[-1][1])
        return self._send(text, len(text), self.tokens, last=True)

    def _send(self, text: str, end: int, count: int, last: bool = False) -> tuple[str, list[tuple[str, int]]]:
        new, places = text[self._length : end], []
        while self.sent < count:
            own, at = self._places[self.sent]
            if not last and at + len(own) > end:
                break
            places.append((own if at + len(own) <= len(text) else text[at:], min(at, len(text))))
            self.sent += 1
        self._length = max(end, self._length)
        return new, places
