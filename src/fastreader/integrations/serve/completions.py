"""`/v1/completions`: texts after prompts, and log-likelihoods of prompts by `echo` and `logprobs`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

from fastreader.core.checks import check_tokens, expect
from fastreader.core.tree import TreeStats
from fastreader.integrations.serve.answers import new_id
from fastreader.integrations.serve.bodies import CompletionRequest
from fastreader.integrations.serve.packing import PackedReader

Best = tuple[int, float] | None  # the most likely token at a place and its log-probability


@dataclass(frozen=True)
class ChoiceTokens:
    """Tokens of a choice, what is known of each, and why it ended.

    Attributes:
        text: decoded.
        tokens: ids.
        logprobs: one for each, nats; None where it is not known.
        best: the most likely token at each place; None where it is not known.
        reason: "stop" or "length".
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float | None, ...] = ()
    best: tuple[Best, ...] = ()
    reason: str = "length"

    def after(self, prompt: ChoiceTokens) -> ChoiceTokens:
        """Return the rows of a prompt and of the text after it."""
        return ChoiceTokens(
            prompt.text + self.text,
            prompt.tokens + self.tokens,
            prompt.logprobs + self.logprobs,
            prompt.best + self.best,
            self.reason,
        )


def answer_completion(request: CompletionRequest, reader: PackedReader) -> dict[str, Any]:
    """Return a completion, n choices for each prompt in order.

    With ``echo`` a choice begins with its prompt, and with ``logprobs`` the prompt's tokens have log-probabilities;
    with ``logprobs=1`` each also has the most likely token at its place. Special tokens written out in a prompt are
    read as such, as other servers do.
    """
    expect(not request.stream, "stream", "false; this server sends whole answers", True)
    most = request.logprobs or 0
    expect(most <= 1, "logprobs", "0 or 1", most)
    expect(request.max_tokens > 0 or request.echo, "max_tokens", "at least 1 without echo", request.max_tokens)
    prompts = _prompts(request, reader)
    groups, stats = [[ChoiceTokens()] for _ in prompts], TreeStats(0, 0, 0, 0)
    scored = request.echo and request.logprobs is not None
    one = scored and request.max_tokens == 1 and request.n == 1 and not request.temperature
    if request.max_tokens and not one:
        groups, stats = _written(request, reader, prompts)
    if request.echo:
        echoed, following, read = _echoed(request, reader, prompts)
        groups = [[next] for next in following] if one else groups
        stats = stats + read
    new = sum(len(rows.tokens) for group in groups for rows in group)
    if request.echo:
        groups = [[rows.after(prompt) for rows in group] for prompt, group in zip(echoed, groups, strict=True)]
    choices: list[dict[str, Any]] = []
    for rows in chain.from_iterable(groups):
        logprobs = None if request.logprobs is None else _logprobs(reader, rows)
        choices.append({"index": len(choices), "text": rows.text, "logprobs": logprobs, "finish_reason": rows.reason})
    given = sum(map(len, prompts))
    counts = {"prompt_tokens": given, "completion_tokens": new, "total_tokens": given + new}
    return {
        "id": new_id("cmpl"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": reader.name,
        "choices": choices,
        "usage": {**counts, "computed_tokens": int(stats.computed_tokens)},
    }


def _echoed(
    request: CompletionRequest, reader: PackedReader, prompts: Sequence[list[int]]
) -> tuple[list[ChoiceTokens], list[ChoiceTokens], TreeStats]:
    """Return the rows of each prompt, of the most likely token after it, and what they cost.

    A prompt's first token has no log-probability. Evaluation harnesses ask for one greedy token after each prompt and
    cut it off, so it comes out of the same pass, and is there also where it ends the text.
    """
    texts = [reader.encoder.tokenizer.decode(prompt) for prompt in prompts]
    if request.logprobs is None:
        unknown = [(None,) * len(prompt) for prompt in prompts]
        rows = [ChoiceTokens(text, tuple(p), none, none) for text, p, none in zip(texts, prompts, unknown, strict=True)]
        return rows, [], TreeStats(0, 0, 0, 0)
    any_token = [0]  # scored for the most likely token at its place
    scores = reader.score([(prompt[:1], prompt[1:] + any_token) for prompt in prompts], best_tokens=True)
    assert scores.best_tokens is not None and scores.best_logprobs is not None
    rows, following = [], []
    for i, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        own = list(zip(scores.best_tokens[i].tolist(), scores.best_logprobs[i].tolist(), strict=True))
        best: tuple[Best, ...] = (None, *own[:-1]) if request.logprobs else (None,) * len(prompt)
        rows.append(ChoiceTokens(text, tuple(prompt), (None, *scores.token_logprobs[i].tolist()[:-1]), best))
        token, value = own[-1]
        ends = token in reader.end_tokens
        word = "" if ends else reader.encoder.text([token])
        following.append(ChoiceTokens(word, (token,), (value,), (None,), "stop" if ends else "length"))
    return rows, following, scores.stats


def _prompts(request: CompletionRequest, reader: PackedReader) -> list[list[int]]:
    """Return the token ids of each prompt."""
    prompt: Any = request.prompt
    several = isinstance(prompt, list) and (not prompt or not isinstance(prompt[0], int))
    given: Sequence[str | list[int]] = prompt if several else [prompt]
    expect(len(given) > 0, "prompt", "at least one", prompt)
    prompts = []
    for i, one in enumerate(given):
        if not isinstance(one, str):
            check_tokens(f"prompt[{i}]", one)
            expect(min(one, default=0) >= 0, f"prompt[{i}]", "token ids of at least 0", min(one, default=0))
        prompts.append(list(reader.encoder.prompt_tokens(one, f"prompt[{i}]", special_tokens=True)))
    return prompts


def _written(
    request: CompletionRequest, reader: PackedReader, prompts: Sequence[list[int]]
) -> tuple[list[list[ChoiceTokens]], TreeStats]:
    """Return the texts after each prompt, and what they cost."""
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    options: dict[str, Any] = {"max_new_tokens": request.max_tokens, "stop": stop}
    if request.n > 1 or request.temperature:
        options |= {"n": request.n, "temperature": request.temperature, "top_p": request.top_p}
        options["seed"] = new_seed() if request.seed is None else request.seed
    if request.logprobs is not None:
        options["token_logprobs"] = True
    found = reader.generate(prompts, **options)
    groups = []
    for texts in found:
        rows = []
        for text in texts:
            tokens, unknown = tuple(text.token_ids), (None,) * len(text.token_ids)
            values = unknown if text.token_logprobs is None else tuple(text.token_logprobs)
            reason = "length" if text.finish_reason == "length" else "stop"
            rows.append(ChoiceTokens(text.text, tokens, values, unknown, reason))
        groups.append(rows)
    return groups, found.stats


def new_seed() -> int:
    """Return a seed that differs from call to call."""
    return time.time_ns() % 2**31


def _logprobs(reader: PackedReader, rows: ChoiceTokens) -> dict[str, Any]:
    """Return the `logprobs` of a choice, with each token decoded by itself."""
    decode = reader.encoder.tokenizer.decode
    texts = [decode([token]) for token in rows.tokens]
    top: list[dict[str, float] | None] = []
    for text, token, value, best in zip(texts, rows.tokens, rows.logprobs, rows.best, strict=True):
        here = None if value is None else {text: value}
        if here is not None and best is not None and best[0] != token:
            other = decode([best[0]])
            here[other if other != text else f"{other} (another token)"] = best[1]  # parts of one character look alike
        top.append(here)
    offsets = [0, *accumulate(map(len, texts))][: len(texts)]
    return {"tokens": texts, "token_logprobs": rows.logprobs, "top_logprobs": top, "text_offset": offsets}
