"""Where a text ends: stop strings, found while it is written, however its tokens cut them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fastreader.errors import InputError

Decode = Callable[[Sequence[int]], str]

_UNFINISHED = "\ufffd"  # what decoders give for the bytes of a character that is not whole yet


def check_stop(stop: Iterable[str]) -> tuple[str, ...]:
    """The stop strings as a tuple.

    Raises:
        InputError: no list, a text in place of one, or an empty stop string.
    """
    # A tuple first: what can be gone through once only would be empty after the check.
    found = None if isinstance(stop, str) or not isinstance(stop, Iterable) else tuple(stop)
    if found is None or not all(isinstance(s, str) and s for s in found):
        raise InputError(f"stop: expected a list of texts that are not empty, got {stop if found is None else found!r}")
    return found


def check_stop_tokens(tokens: Iterable[int]) -> frozenset[int]:
    """The stop tokens as a set.

    Raises:
        InputError: no list, or something else than token ids in it.
    """
    found = tuple(tokens) if isinstance(tokens, Iterable) else None
    if found is None or not all(isinstance(t, (int, np.integer)) and not isinstance(t, bool) for t in found):
        raise InputError(f"stop_tokens: expected a list of token ids, got {tokens if found is None else found!r}")
    return frozenset(int(t) for t in found)


def cut(text: str, stop: Sequence[str]) -> str | None:
    """`text` up to the stop string that comes first, or None where there is none."""
    found = [place for s in stop if (place := text.find(s)) >= 0]
    return text[: min(found)] if found else None


class StopWatch:
    """Looks for stop strings in a text that grows token by token.

    Only the last tokens are decoded again each time: a token's text depends on the one before it (a leading
    space, the bytes of a character), hardly ever on earlier ones. What that finds is confirmed on the whole text.

    Args:
        decode: token ids to text.
        stop: the stop strings.
    """

    def __init__(self, decode: Decode, stop: Sequence[str]) -> None:
        self._decode = decode
        self._stop = stop
        self._reach = max(map(len, stop), default=0)
        self._tail = ""  # the end of the text settled so far, as long as a stop string may reach back
        self._settled = 0  # tokens whose text is in the tail
        self._context = 0  # first of the tokens decoded before the new ones

    def found(self, tokens: Sequence[int]) -> bool:
        """Whether a stop string has come up; `tokens` are all of the text so far."""
        if not self._stop:
            return False
        known = self._decode(tokens[self._context : self._settled])
        text = self._decode(tokens[self._context :])
        new = text[len(known) :]
        seen = self._tail + new
        if new and not text.endswith(_UNFINISHED):
            self._tail = seen[-self._reach :]
            self._context, self._settled = self._settled, len(tokens)
        return any(s in seen for s in self._stop) and cut(self._decode(tokens), self._stop) is not None
