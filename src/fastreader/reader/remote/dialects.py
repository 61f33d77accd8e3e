"""Requests to engines for the log-likelihoods of a sequence, and how their replies are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastreader.errors import EngineError, UnsupportedImplementationError


@dataclass(frozen=True)
class Scored:
    """An engine's values for one sequence.

    Attributes:
        token_logprobs: of the scored tokens, nats.
        is_greedy: whether each of them is the most likely one.
        computed_tokens: tokens of the prompt that the engine did not find in its cache; None if unknown.
    """

    token_logprobs: list[float]
    is_greedy: bool
    computed_tokens: int | None


class Dialect:
    """The OpenAI-compatible `/v1/completions`, with `echo` and `logprobs`, of which other engines change parts."""

    name = "openai"
    path = "/v1/completions"
    takes_token_ids = False  # whether it takes and returns token ids as well as texts
    most_labels = 0  # next tokens that one request can ask for by id

    def ask(self, model: str, tokens: Sequence[int], first: int) -> dict[str, Any]:
        """Return the request that scores ``tokens[first:]`` after the tokens before them."""
        return {**self._prompt(model, tokens), "echo": True, "logprobs": 1}

    def read(self, reply: Mapping[str, Any], tokens: Sequence[int], first: int) -> Scored:
        """Return the values in a reply.

        Raises:
            EngineError: if it lacks log-probabilities.
        """
        given = _at(_choice(reply), "logprobs", {})
        values = _at(given, "token_logprobs", [])[first : len(tokens)]
        self._check(values, len(tokens) - first)
        best = _at(given, "top_logprobs", [])[first : len(tokens)]
        greedy = len(best) == len(values) and all(
            bool(top) and value >= max(top.values()) for value, top in zip(values, best, strict=True)
        )
        return Scored([float(value) for value in values], greedy, _computed(reply, len(tokens)))

    def ask_labels(self, model: str, context: Sequence[int], labels: Sequence[int]) -> dict[str, Any]:
        """Return the request that scores each of `labels` as the next token after a context."""
        raise UnsupportedImplementationError(f"the {self.name} engine takes no ids of next tokens")

    def read_labels(self, reply: Mapping[str, Any], context: Sequence[int], labels: Sequence[int]) -> list[Scored]:
        """Return the values of each label in a reply to `ask_labels`.

        Raises:
            EngineError: if it lacks one.
        """
        raise UnsupportedImplementationError(f"the {self.name} engine takes no ids of next tokens")

    @staticmethod
    def _prompt(model: str, tokens: Sequence[int]) -> dict[str, Any]:
        return {"model": model, "prompt": list(tokens), "max_tokens": 1, "temperature": 0}

    def _check(self, values: Sequence[Any], count: int) -> None:
        if len(values) != count or any(value is None for value in values):
            known = sum(value is not None for value in values)
            raise EngineError(
                f"the {self.name} engine gave log-probabilities of {known} of {count} tokens of a prompt; "
                "it may not return log-probabilities of prompts, or another engine= fits"
            )


class Vllm(Dialect):
    """vLLM's `prompt_logprobs` by token ids, and `logprob_token_ids`, for which it may use its prefix cache."""

    name = "vllm"
    takes_token_ids = True
    most_labels = 128  # vllm.sampling_params.MAX_LOGPROB_TOKEN_IDS

    def ask(self, model: str, tokens: Sequence[int], first: int) -> dict[str, Any]:
        """See `Dialect.ask`."""
        return {**self._prompt(model, tokens), "prompt_logprobs": 1}

    def read(self, reply: Mapping[str, Any], tokens: Sequence[int], first: int) -> Scored:
        """See `Dialect.read`."""
        rows = _at(_choice(reply), "prompt_logprobs", [])[first : len(tokens)]
        own = [_at(row, str(token), None) for row, token in zip(rows, tokens[first:], strict=False)]
        self._check([_at(entry, "logprob", None) for entry in own], len(tokens) - first)
        greedy = all(
            entry["logprob"] >= max(other["logprob"] for other in row.values())
            for entry, row in zip(own, rows, strict=True)
        )
        return Scored([float(entry["logprob"]) for entry in own], greedy, _computed(reply, len(tokens)))

    def ask_labels(self, model: str, context: Sequence[int], labels: Sequence[int]) -> dict[str, Any]:
        """See `Dialect.ask_labels`."""
        options = {"logprobs": 1, "logprob_token_ids": list(labels), "return_tokens_as_token_ids": True}  # nosec B105 # ids of tokens
        return {**self._prompt(model, context), **options}

    def read_labels(self, reply: Mapping[str, Any], context: Sequence[int], labels: Sequence[int]) -> list[Scored]:
        """See `Dialect.read_labels`."""
        given = _at(_choice(reply), "logprobs", {})
        values: Mapping[str, float] = next(iter(_at(given, "top_logprobs", [])), {}) or {}
        found = [values.get(f"token_id:{label}") for label in labels]
        self._check(found, len(labels))
        chosen = next(iter(_at(given, "tokens", [])), None)  # temperature 0 chooses the most likely token
        computed = _computed(reply, len(context))
        return [
            Scored([float(value)], chosen == f"token_id:{label}", computed)
            for label, value in zip(labels, found, strict=True)
            if value is not None
        ]


class Sglang(Dialect):
    """SGLang's `/generate`, which keeps its cache for what precedes `logprob_start_len`."""

    name = "sglang"
    path = "/generate"
    takes_token_ids = True

    def ask(self, model: str, tokens: Sequence[int], first: int) -> dict[str, Any]:
        """See `Dialect.ask`."""
        return {
            "input_ids": list(tokens),
            "sampling_params": {"temperature": 0, "max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": first - 1,
            "top_logprobs_num": 1,
        }

    def read(self, reply: Mapping[str, Any], tokens: Sequence[int], first: int) -> Scored:
        """See `Dialect.read`."""
        count, meta = len(tokens) - first, _at(reply, "meta_info", {})
        rows = _at(meta, "input_token_logprobs", [])[-count:] if count else []
        if [row[1] for row in rows] != list(tokens[first:]):
            rows = []
        self._check([row[0] for row in rows], count)
        best = _at(meta, "input_top_logprobs", [])[-count:] if count else []
        greedy = len(best) == count and all(
            bool(top) and row[0] >= max(other[0] for other in top) for row, top in zip(rows, best, strict=True)
        )
        cached = meta.get("cached_tokens")
        return Scored([float(row[0]) for row in rows], greedy, None if cached is None else len(tokens) - int(cached))


class LlamaCpp(Dialect):
    """llama.cpp's server, which generates but returns no log-probabilities of a prompt."""

    name = "llamacpp"

    def ask(self, model: str, tokens: Sequence[int], first: int) -> dict[str, Any]:
        """Raise, since there is no such request."""
        raise UnsupportedImplementationError(
            "llama.cpp's server gives no log-probabilities of prompts; it can generate, and other engines can score"
        )


DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (Dialect(), Vllm(), Sglang(), LlamaCpp())}
PROBES = {"vllm": "/version", "sglang": "/get_model_info", "llamacpp": "/props"}  # paths that only they answer


def _choice(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = _at(reply, "choices", [])
    return choices[0] if choices else {}


def _at(value: Any, key: str, missing: Any) -> Any:
    """Return value[key], or `missing` if it is absent or null."""
    found = value.get(key) if isinstance(value, Mapping) else None
    return missing if found is None else found


def _computed(reply: Mapping[str, Any], count: int) -> int | None:
    cached = _at(_at(_at(reply, "usage", {}), "prompt_tokens_details", {}), "cached_tokens", None)
    return None if cached is None else count - int(cached)
