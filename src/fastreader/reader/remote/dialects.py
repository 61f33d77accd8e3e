"""Requests to engines for the log-likelihoods of a sequence, and how their replies are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fastreader.errors import EngineError, UnsupportedImplementationError
from fastreader.reader.remote.replies import Completion, EngineChoice, Logprobs, Reply, SglangReply


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
    reply: ClassVar[type[Reply]] = Completion
    takes_token_ids = False  # whether it takes and returns token ids as well as texts
    most_labels = 0  # next tokens that one request can ask for by id

    def ask(self, model: str, tokens: Sequence[int], first: int) -> dict[str, Any]:
        """Return the request that scores ``tokens[first:]`` after the tokens before them."""
        return {**self._prompt(model, tokens), "echo": True, "logprobs": 1}

    def read(self, reply: Any, tokens: Sequence[int], first: int) -> Scored:
        """Return the values in a reply.

        Raises:
            EngineError: if it lacks log-probabilities, or has them for other tokens.
        """
        self.check_prompt(reply, len(tokens))
        given = _choice(reply).logprobs or Logprobs()
        values = self._known((given.token_logprobs or [])[first : len(tokens)], len(tokens) - first)
        if len(given.token_logprobs or []) > len(tokens) + 1:  # one more for the token that it generates
            raise _added(len(given.token_logprobs or []) - 1, len(tokens))
        best = (given.top_logprobs or [])[first : len(tokens)]
        greedy = len(best) == len(values) and all(
            top and value >= max(top.values()) for value, top in zip(values, best, strict=True)
        )
        return Scored(values, greedy, _computed(reply, len(tokens)))

    def ask_labels(self, model: str, context: Sequence[int], labels: Sequence[int]) -> dict[str, Any]:
        """Return the request that scores each of `labels` as the next token after a context."""
        raise UnsupportedImplementationError(f"the {self.name} engine takes no ids of next tokens")

    def read_labels(self, reply: Any, context: Sequence[int], labels: Sequence[int]) -> list[Scored]:
        """Return the values of each label in a reply to `ask_labels`.

        Raises:
            EngineError: if it lacks one.
        """
        raise UnsupportedImplementationError(f"the {self.name} engine takes no ids of next tokens")

    def check_prompt(self, reply: Completion, count: int) -> None:
        """Raise EngineError if the engine read another number of tokens than the `count` of the prompt."""
        read = reply.usage.prompt_tokens if reply.usage else None
        if read not in (None, count):
            raise _added(read, count)

    @staticmethod
    def _prompt(model: str, tokens: Sequence[int]) -> dict[str, Any]:
        return {"model": model, "prompt": list(tokens), "max_tokens": 1, "temperature": 0}

    def _known(self, values: Sequence[float | None], count: int) -> list[float]:
        known = [value for value in values if value is not None]
        if len(known) != count or len(values) != count:
            raise EngineError(
                f"the {self.name} engine gave log-probabilities of {len(known)} of {count} tokens of a prompt; "
                "it may not return log-probabilities of prompts, or another engine= fits"
            )
        return known


class Vllm(Dialect):
    """vLLM's `prompt_logprobs` by token ids, and `logprob_token_ids`, for which it may use its prefix cache."""

    name = "vllm"
    takes_token_ids = True
    most_labels = 128  # vllm.sampling_params.MAX_LOGPROB_TOKEN_IDS

    def ask(self, model: str, tokens: Sequence[int], first: int) -> dict[str, Any]:
        """See `Dialect.ask`."""
        return {**self._prompt(model, tokens), "prompt_logprobs": 1}

    def read(self, reply: Any, tokens: Sequence[int], first: int) -> Scored:
        """See `Dialect.read`."""
        self.check_prompt(reply, len(tokens))
        rows = _choice(reply).prompt_logprobs or []
        if len(rows) > len(tokens):
            raise _added(len(rows), len(tokens))
        rows = rows[first:]
        own = [(row or {}).get(str(token)) for row, token in zip(rows, tokens[first:], strict=False)]
        values = self._known([entry.logprob if entry else None for entry in own], len(tokens) - first)
        greedy = all(
            value >= max(other.logprob for other in (row or {}).values())
            for value, row in zip(values, rows, strict=True)
        )
        return Scored(values, greedy, _computed(reply, len(tokens)))

    def ask_labels(self, model: str, context: Sequence[int], labels: Sequence[int]) -> dict[str, Any]:
        """See `Dialect.ask_labels`."""
        options = {"logprobs": 1, "logprob_token_ids": list(labels), "return_tokens_as_token_ids": True}  # nosec B105 # ids of tokens
        return {**self._prompt(model, context), **options}

    def read_labels(self, reply: Any, context: Sequence[int], labels: Sequence[int]) -> list[Scored]:
        """See `Dialect.read_labels`."""
        self.check_prompt(reply, len(context))
        given = _choice(reply).logprobs or Logprobs()
        values = next(iter(given.top_logprobs or []), None) or {}
        found = self._known([values.get(f"token_id:{label}") for label in labels], len(labels))
        chosen = next(iter(given.tokens or []), None)  # temperature 0 chooses the most likely token
        computed = _computed(reply, len(context))
        return [
            Scored([value], chosen == f"token_id:{label}", computed) for label, value in zip(labels, found, strict=True)
        ]


class Sglang(Dialect):
    """SGLang's `/generate`, which keeps its cache for what precedes `logprob_start_len`."""

    name = "sglang"
    path = "/generate"
    reply = SglangReply
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

    def read(self, reply: Any, tokens: Sequence[int], first: int) -> Scored:
        """See `Dialect.read`."""
        count, meta = len(tokens) - first, reply.meta_info
        rows = meta.input_token_logprobs[-count:] if count else []
        if [token for _, token, _ in rows] != list(tokens[first:]):
            rows = []
        values = self._known([value for value, _, _ in rows], count)
        best = (meta.input_top_logprobs or [])[-count:] if count else []
        greedy = len(best) == count and all(
            bool(top) and value >= max(other[0] or 0.0 for other in top)
            for value, top in zip(values, best, strict=True)
        )
        return Scored(values, greedy, None if meta.cached_tokens is None else len(tokens) - meta.cached_tokens)


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


def _choice(reply: Completion) -> EngineChoice:
    return reply.choices[0] if reply.choices else EngineChoice()


def _added(read: int | None, count: int) -> EngineError:
    return EngineError(
        f"the engine read {read} tokens of a prompt of {count}: it adds tokens, such as one for the beginning of the "
        "text, or drops some, so that its numbers are other tokens'; switch that off in the engine"
    )


def _computed(reply: Completion, count: int) -> int | None:
    return None if reply.cached_tokens is None else count - reply.cached_tokens
