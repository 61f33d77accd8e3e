"""`/v1/completions`: texts after prompts, and log-likelihoods of prompts by `echo` and `logprobs`."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastreader.core.checks import expect
from fastreader.core.protocol import Generation, Results
from fastreader.core.tree import Tokens, TreeStats
from fastreader.errors import ContextOverflowError
from fastreader.integrations.serve.answers import new_id
from fastreader.integrations.serve.bodies import CompletionRequest, Generated
from fastreader.integrations.serve.packed_reader import PackedReader, compact
from fastreader.integrations.serve.texts import BEFORE, Decode, GrowingText, leading_space, token_places
from fastreader.reader.generation.text_so_far import DecodedText

Top = Sequence[tuple[int, float]]  # the most likely tokens at a place and their log-probabilities
Emit = Callable[[dict[str, Any]], None]  # sends an event of a stream
_PART = 20_000  # characters that are encoded at once
_SPLIT = 8  # tokens that a cut may add to a part
MOST_TEXTS = 2_048  # of a request
MOST_VALUES = 100_000  # log-probabilities of an answer, which takes at most some 20 MB
MOST_ECHOED = 250_000  # tokens


@dataclass(frozen=True)
class ChoiceTokens:
    """Tokens of a choice, what is known of each, and why it ended.

    Attributes:
        text: decoded.
        tokens: ids.
        logprobs: one for each, nats; None where it is not known.
        top: the most likely tokens at each place; None where they are not known.
        reason: "stop" or "length".
        before: tokens before them that are not shown.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float | None, ...] = ()
    top: tuple[Top | None, ...] = ()
    reason: str = "length"
    before: tuple[int, ...] = ()

    def after(self, prompt: ChoiceTokens) -> ChoiceTokens:
        """Return the rows of a prompt and of the text after it."""
        return ChoiceTokens(
            prompt.text + self.text,
            prompt.tokens + self.tokens,
            prompt.logprobs + self.logprobs,
            prompt.top + self.top,
            self.reason,
        )


def answer_completion(
    request: CompletionRequest, reader: PackedReader, emit: Emit | None = None
) -> dict[str, Any] | None:
    """Return a completion, n choices for each prompt in order, or send it by `emit` while it is generated.

    With ``echo`` a choice begins with its prompt, and with ``logprobs`` the prompt's tokens have log-probabilities and
    the most likely tokens at their places. Special tokens written out in a prompt are read as such, as other servers
    do.
    """
    expect(request.max_tokens > 0 or request.echo, "max_tokens", "at least 1 without echo", request.max_tokens)
    prompts = _prompts(request, reader)
    check_size(request, reader, prompts, request.logprobs, request.echo)
    scored = request.echo and request.logprobs is not None
    one = scored and request.max_tokens == 1 and request.n == 1 and not request.temperature and emit is None
    ends = [tuple(prompt[-BEFORE:]) for prompt in prompts]
    echoed, stats = [ChoiceTokens(before=end) for end in ends], TreeStats(0, 0, 0, 0)
    following: list[ChoiceTokens] = []
    if request.echo:
        echoed, following, stats = _echoed(request, reader, prompts)
    stream = None if emit is None else _CompletionStream(request, reader, echoed, emit)
    groups = [[ChoiceTokens(before=end)] * request.n for end in ends]
    if one:
        groups = [[rows] for rows in following]
    elif request.max_tokens:
        on_step = None if stream is None else stream.step
        found = generated(request, reader, prompts, request.logprobs, on_step)
        stats = stats + found.stats
        groups = [
            [_rows(reader, end, text, request.logprobs) for text in texts]
            for end, texts in zip(ends, found, strict=True)
        ]
    counts = usage(prompts, groups, stats)
    if stream is not None:
        stream.end([rows for group in groups for rows in group], counts)
        return None
    choices: list[dict[str, Any]] = []
    for prompt, group in zip(echoed, groups, strict=True):
        reader.check()
        for rows in group:
            shown = rows.after(prompt) if request.echo else rows
            logprobs = None if request.logprobs is None else _logprobs(reader, shown)
            reason = rows.reason
            choices.append({"index": len(choices), "text": shown.text, "logprobs": logprobs, "finish_reason": reason})
    return {**head("cmpl", "text_completion", reader), "choices": choices, "usage": counts}


def check_size(
    request: Generated, reader: PackedReader, prompts: Sequence[Tokens], top: int | None, echo: bool = False
) -> None:
    """Raise InputError if an answer would be too large, before anything is computed for it."""
    texts = len(prompts) * request.n
    expect(texts <= MOST_TEXTS, "n", f"at most {MOST_TEXTS:,} texts of all prompts", f"{texts:,} texts")
    given = request.n * sum(map(len, prompts)) if echo else 0
    expect(given <= MOST_ECHOED, "echo", f"at most {MOST_ECHOED:,} tokens of prompts, n times each", f"{given:,}")
    if top is None:
        return
    limit, most = reader.max_length, int(getattr(request, "max_tokens", 0))
    new = sum(most if limit is None else max(0, min(most, limit + 1 - len(prompt))) for prompt in prompts)
    values = (given + request.n * new) * (1 + top)
    expect(values <= MOST_VALUES, "logprobs", f"at most {MOST_VALUES:,} of all tokens", f"up to {values:,}")


def generated(
    request: Generated, reader: PackedReader, prompts: Sequence[Tokens], top: int | None, on_step: Any = None
) -> Results[list[Generation]]:
    """Return the texts after each prompt, by the fields of a request."""
    options: dict[str, Any] = {
        "max_new_tokens": getattr(request, "max_tokens", 0),
        "stop": stops(request),
        "stop_token_ids": request.stop_token_ids or [],
        "token_logprobs": top is not None,
        "top_logprobs": top or 0,
    }
    if request.n > 1 or request.temperature:
        top_k = request.top_k if request.top_k is not None and request.top_k > 0 else None
        options |= {"n": request.n, "temperature": request.temperature, "top_p": request.top_p, "top_k": top_k}
        options["seed"] = time.time_ns() % 2**31 if request.seed is None else request.seed
    return reader.generate(prompts, on_step=on_step, **options)


def stops(request: Generated) -> list[str]:
    """Return the stop strings of a request."""
    return [request.stop] if isinstance(request.stop, str) else request.stop or []


def head(kind: str, name: str, reader: PackedReader) -> dict[str, Any]:
    """Return what a response begins with."""
    return {"id": new_id(kind), "object": name, "created": int(time.time()), "model": reader.name}


def usage(prompts: Sequence[Tokens], groups: Sequence[Sequence[ChoiceTokens]], stats: TreeStats) -> dict[str, Any]:
    """Return the number of tokens in prompts and texts, and the number computed for them.

    None of them come from the cache of passages, which is for the paths that take passages.
    """
    given, new = sum(map(len, prompts)), sum(len(rows.tokens) for group in groups for rows in group)
    counts = {"prompt_tokens": given, "completion_tokens": new, "total_tokens": given + new}
    details = {"cached_tokens": int(stats.cached_tokens)}
    return {**counts, "computed_tokens": int(stats.computed_tokens), "prompt_tokens_details": details}


def reason_of(text: Generation) -> str:
    """Return why a text ended, as OpenAI names it."""
    return "length" if text.finish_reason == "length" else "stop"


def _rows(reader: PackedReader, before: Tokens, text: Generation, top: int | None) -> ChoiceTokens:
    tokens, unknown = tuple(text.token_ids), (None,) * len(text.token_ids)
    values = unknown if text.token_logprobs is None else tuple(text.token_logprobs)
    tops = unknown if not text.top_logprobs else tuple(text.top_logprobs)
    shown = leading_space(reader.encoder.text, tokens, before) + text.text
    return ChoiceTokens(shown, tokens, values, tops, reason_of(text), tuple(before))


def _echoed(
    request: CompletionRequest, reader: PackedReader, prompts: Sequence[array[int]]
) -> tuple[list[ChoiceTokens], list[ChoiceTokens], TreeStats]:
    """Return the rows of each prompt, of the most likely token after it, and what they cost.

    A prompt's first token has no log-probability. Evaluation harnesses ask for one greedy token after each prompt and
    cut it off, so it comes out of the same pass, and is there also where it ends the text.
    """
    texts = []
    for prompt in prompts:
        reader.check()
        texts.append(_decoder(reader)(prompt.tolist()))
    if request.logprobs is None:
        unknown = [(None,) * len(prompt) for prompt in prompts]
        rows = [ChoiceTokens(text, tuple(p), none, none) for text, p, none in zip(texts, prompts, unknown, strict=True)]
        return rows, [], TreeStats(0, 0, 0, 0)
    most = max(1, request.logprobs)  # token 0 is scored for the most likely one at its place
    scores = reader.score([(prompt[:1], array("I", [*prompt[1:], 0])) for prompt in prompts], top_tokens=most)
    assert scores.top_tokens is not None and scores.top_logprobs is not None
    rows, following = [], []
    for i, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        ids, values = scores.top_tokens[i].tolist(), scores.top_logprobs[i].tolist()
        own: list[Top] = [list(zip(*row, strict=True)) for row in zip(ids, values, strict=True)]
        top: tuple[Top | None, ...] = (None, *own[:-1]) if request.logprobs else (None,) * len(prompt)
        rows.append(ChoiceTokens(text, tuple(prompt), (None, *scores.token_logprobs[i].tolist()[:-1]), top))
        token, value = own[-1][0]
        ends = token in reader.end_tokens
        word = (
            "" if ends else leading_space(reader.encoder.text, [token], prompt[-BEFORE:]) + reader.encoder.text([token])
        )
        last = own[-1] if request.logprobs else None
        following.append(
            ChoiceTokens(word, (token,), (value,), (last,), "stop" if ends else "length", tuple(prompt[-BEFORE:]))
        )
    return rows, following, scores.stats


def _prompts(request: CompletionRequest, reader: PackedReader) -> list[array[int]]:
    """Return the token ids of each prompt in little memory, and take the prompts out of the request."""
    prompt: Any = request.prompt
    several = isinstance(prompt, list) and (not prompt or not isinstance(prompt[0], int))
    given: list[str | list[int]] = prompt if several else [prompt]
    expect(len(given) > 0, "prompt", "at least one", prompt)
    request.prompt = prompt = ""
    prompts = []
    for i, one in enumerate(given):
        reader.check()
        name = f"prompt[{i}]"
        check_length(reader, name, one)
        if not isinstance(one, str):
            check_ids(reader, name, one)
        prompts.append(compact(reader.encoder.prompt_tokens(one, name, special_tokens=True)))
        given[i] = ""
        check_length(reader, name, prompts[-1])
    return prompts


def check_ids(reader: PackedReader, name: str, tokens: Sequence[int]) -> None:
    """Raise InputError if token ids are not in the vocabulary."""
    wrong = min(tokens, default=0) if min(tokens, default=0) < 0 else max(tokens, default=0)
    expect(0 <= wrong < reader.vocabulary, name, f"token ids from 0, below the vocabulary's {reader.vocabulary}", wrong)


def check_length(reader: PackedReader, name: str, given: str | Sequence[int]) -> None:
    """Raise ContextOverflowError if a prompt is longer than the context.

    A text is encoded in parts until it is known to be too long, since the tokens of a long text take many times its
    memory; a part's own tokens may be a few more than those that it has in the whole.
    """
    limit = reader.max_length
    if limit is None:
        return
    known, allowed = len(given), limit
    if isinstance(given, str):
        known = 0
        for first in range(0, len(given) if len(given) > min(_PART, limit) else 0, _PART):
            known += len(reader.encoder.piece(given[first : first + _PART]))
            allowed += _SPLIT
            if known > allowed:
                break
    if known > allowed:
        more = "more than " * isinstance(given, str)
        raise ContextOverflowError(f"{name}: {more}{known} tokens long, the context of {reader.name} is {limit}")


def _decoder(reader: Any) -> Decode:
    """Return what decodes token ids, special tokens included."""
    return partial(reader.encoder.tokenizer.decode, clean_up_tokenization_spaces=False)


def _logprobs(reader: Any, rows: ChoiceTokens) -> dict[str, Any]:
    """Return the `logprobs` of a choice."""
    decode = _decoder(reader)
    places = token_places(decode, rows.text, rows.tokens, rows.before)
    return _listed(TopTexts(decode), places, rows.tokens, rows.logprobs, rows.top)


def _listed(
    texts: TopTexts,
    places: Sequence[tuple[str, int]],
    tokens: Sequence[int],
    logprobs: Sequence[float | None],
    tops: Sequence[Top | None],
    start: int = 0,
) -> dict[str, Any]:
    """Return `logprobs` of tokens with their texts and places, which count from `start`."""
    rows = zip(places, tokens, logprobs, tops, strict=True)
    return {
        "tokens": [text for text, _ in places],
        "token_logprobs": list(logprobs),
        "top_logprobs": [None if v is None else texts.named(text, token, v, top) for (text, _), token, v, top in rows],
        "text_offset": [start + offset for _, offset in places],
    }


class TopTexts:
    """The texts of tokens that could have come next.

    Args:
        decode: token ids to text.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode, self._known = decode, dict[int, str]()

    def text(self, token: int) -> str:
        """Return the text of a token behind any other."""
        if token not in self._known:
            doubled, single = self._decode([token, token]), self._decode([token])
            # A space that SentencePiece drops at the start of a text shows in the second of two.
            self._known[token] = doubled[len(single) :] if doubled.startswith(single) else single
        return self._known[token]

    def named(self, text: str, token: int, value: float, top: Top | None) -> dict[str, float]:
        """Return the log-probabilities of a token and the most likely ones by their texts, or ids if texts repeat."""
        values = {text: value}
        for other, logprob in top or ():
            if other != token:
                name = self.text(other)
                values[f"token_id:{other}" if name in values else name] = logprob
        return values


class _CompletionStream:
    """The events of a completion.

    Args:
        request, reader: of the completion.
        prompts: their rows, which are sent first if there is an echo.
        emit: sends an event.
    """

    def __init__(
        self, request: CompletionRequest, reader: PackedReader, prompts: Sequence[ChoiceTokens], emit: Emit
    ) -> None:
        self._request, self._reader, self._emit = request, reader, emit
        self._head = head("cmpl", "text_completion", reader)
        options = request.stream_options
        self._usage = options is not None and options.include_usage
        each = [prompt for prompt in prompts for _ in range(request.n)]
        self._starts = [len(prompt.text) for prompt in each]  # of the texts behind the prompts that are shown
        self._top = TopTexts(_decoder(reader))
        self._texts = growing(request, reader, [prompt.tokens or prompt.before for prompt in each])
        for i, prompt in enumerate(each if request.echo else ()):
            reader.check()
            logprobs = None if request.logprobs is None else _logprobs(reader, prompt)
            self._send(i, prompt.text, logprobs)

    def _send(self, index: int, text: str, logprobs: Any = None, reason: str | None = None) -> None:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        self._emit({**self._head, "choices": [choice], **({"usage": None} if self._usage else {})})

    def step(self, texts: Sequence[tuple[int, DecodedText]]) -> None:
        """Send what a step added."""
        for i, text in texts:
            own = self._texts[i]
            new, places = own.grow(text.tokens[own.tokens :])
            if new or places:
                self._send(i, new, self._logprobs(i, places, text.tokens, text.logprobs, text.top))

    def end(self, texts: Sequence[ChoiceTokens], counts: dict[str, Any]) -> None:
        """Send the rest."""
        for i, rows in enumerate(texts):
            self._texts[i].grow(rows.tokens[self._texts[i].tokens :])
            rest, places = self._texts[i].end(rows.text)
            self._send(i, rest, self._logprobs(i, places, rows.tokens, rows.logprobs, rows.top), rows.reason)
        if self._usage:
            self._emit({**self._head, "choices": [], "usage": counts})

    def _logprobs(
        self,
        index: int,
        places: Sequence[tuple[str, int]],
        tokens: Sequence[int],
        logprobs: Sequence[float | None],
        tops: Sequence[Top | None],
    ) -> dict[str, Any] | None:
        """Return the `logprobs` of the tokens that were sent last, which are at these places."""
        if self._request.logprobs is None:
            return None
        end = self._texts[index].sent
        part = slice(end - len(places), end)
        known = tops[part] or (None,) * len(places)
        return _listed(self._top, places, tokens[part], logprobs[part], known, self._starts[index])


def growing(request: Generated, reader: PackedReader, before: Sequence[Sequence[int]]) -> list[GrowingText]:
    """Return the texts of a stream, given the tokens before each."""
    stop, encoder = stops(request), reader.encoder
    # A stop string of a special token and more is found in a text that is not the one sent.
    whole = any(encoder.special_in(text) and text not in encoder.special for text in stop)
    return [GrowingText(encoder.text, stop, tokens, whole=whole) for tokens in before]
