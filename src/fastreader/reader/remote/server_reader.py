"""ServerReader: the reader's calls over a running engine, by HTTP."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Unpack

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice, check_int, check_number, check_text, expect, rejecting
from fastreader.core.options import GenerateOptions
from fastreader.core.protocol import GenerateArguments, Generation, Results, SequenceScores, TextOrTokens
from fastreader.core.tree import PrefixTree, TokenPairs, TreeStats, partition
from fastreader.errors import ContextOverflowError, EngineError, MissingExtraError, NumericsError
from fastreader.models.gguf.file import GgufFile
from fastreader.models.gguf.tokenizer import tokenizer_of
from fastreader.models.loading.packaged import file_of, is_cached, is_packaged
from fastreader.reader.fitting import leave_room
from fastreader.reader.generation.text_so_far import Stops
from fastreader.reader.loglikelihood import ScoreReader
from fastreader.reader.prompts.encoder import TextEncoder
from fastreader.reader.remote.dialects import DIALECTS, PROBES, Scored
from fastreader.reader.remote.replies import (
    Completion,
    EngineChoice,
    Logprobs,
    ReplyType,
    ServedModel,
    ServedModels,
    parse,
)

KEY, OPENAI_KEY = "FASTREADER_API_KEY", "OPENAI_API_KEY"  # environment variables
_OPENAI = "api.openai.com"  # the only host that gets OpenAI's key unasked
_MOST_BYTES = 1 << 27  # of a reply, unpacked
_TOGETHER = 1 << 16  # tokens of questions that wait for each other
_LONGEST_WAIT = 8.0  # seconds between two attempts
_Key = tuple[tuple[int, ...], int]  # a sequence's tokens, and the place of the first one scored


class _HttpRequest(NamedTuple):
    tokens: tuple[int, ...]
    first: int
    labels: tuple[int, ...] = ()  # next tokens after `tokens`, scored instead of the tokens from `first` on


@checked
class ServerReader(ScoreReader):
    """A reader whose model runs in an engine: vLLM, SGLang, llama.cpp, or any with OpenAI's `/v1/completions`.

    It replaces a `Reader` in `score_permutations` and all methods. Texts are tokenised here, and the engine gets token
    ids. Each sequence is a separate request, since engines answer no others, except that vLLM takes several next tokens
    of a context at once. Equal prefixes are sent one after another, for the engine's cache.

    Args:
        url: of the engine, with or without `/v1`.
        model: the name by which the engine serves it; None takes the only one.
        tokenizer: the model's transformers tokenizer, or its name or folder; None takes `model`. One that brings
            code is rejected.
        engine: "vllm", "sglang", "llamacpp" or "openai"; "auto" asks the engine.
        max_length: longest input in tokens; None asks the engine.
        api_key: sent as a bearer token; None takes $FASTREADER_API_KEY, or for api.openai.com $OPENAI_API_KEY.
        concurrency: requests under way at once.
        timeout: seconds that an attempt may take, from its sending to the end of its reply.
        retries: further attempts after a time-out, a lost connection, or an answer of 429 or 5xx.
        transport: an httpx transport, instead of the network.

    Attributes:
        name: of the model.
        url, engine: as given, or as found.

    Raises:
        EngineError: if the engine cannot be reached, or serves other models.
        MissingExtraError: if httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        tokenizer: Any = None,
        *,
        engine: str = "auto",
        max_length: int | None = None,
        api_key: str | None = None,
        concurrency: int = 16,
        timeout: float = 120.0,
        retries: int = 4,
        transport: Any = None,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtraError("httpx", "engines") from error
        check_text("url", url)
        expect(url.startswith(("http://", "https://")), "url", "an address that begins with http:// or https://", url)
        asked = transport is None or callable(getattr(transport, "handle_request", None))
        expect(asked, "transport", "an httpx transport or None", transport)
        check_choice("engine", engine, ("auto", *DIALECTS))
        check_int("concurrency", concurrency)
        check_int("retries", retries, 0)
        check_int("max_length", max_length, optional=True)
        check_number("timeout", timeout, above=0)
        self.url = url.rstrip("/").removesuffix("/v1")
        self.concurrency, self.retries, self.timeout = concurrency, retries, timeout
        with rejecting(f"url: expected an address, got {url!r}", httpx.InvalidURL):
            key = api_key or os.environ.get(KEY)
            if not key and httpx.URL(self.url).host == _OPENAI:
                key = os.environ.get(OPENAI_KEY)
            sendable = not key or (key.isascii() and key.isprintable())
            expect(sendable, "api_key", "printable ASCII characters", "others")
            self._client = httpx.Client(
                base_url=self.url,
                timeout=timeout,
                headers={"Authorization": f"Bearer {key}"} if key else {},
                limits=httpx.Limits(max_connections=concurrency),
                transport=transport,
            )
        served = self._served(model)
        self.name = served.id
        self._max_length = max_length or served.max_model_len or (served.meta.n_ctx_train if served.meta else None)
        self.engine = self._found_engine() if engine == "auto" else engine
        self._dialect = DIALECTS[self.engine]
        super().__init__(TextEncoder(tokenizer_for(self.name if tokenizer is None else tokenizer)))

    def __repr__(self) -> str:
        return f"ServerReader({self.name!r}, {self.engine} at {self.url})"

    def __enter__(self) -> ServerReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def describe(self) -> dict[str, str]:
        """Return the model's name and engine, whose dtype and precision are unknown."""
        return {"name": self.name, "device": f"{self.engine} at {self.url}", "dtype": "unknown", "precision": "unknown"}

    @property
    def max_length(self) -> int | None:
        """Longest input in tokens, or None if neither the caller nor the engine gives it."""
        return self._max_length

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens by which the model ends a text, by its tokenizer."""
        own = self.encoder.tokenizer.eos_token_id
        return frozenset() if own is None else frozenset({int(own)})

    def budget(self) -> int:
        """Return the number of tokens of questions that are sent together."""
        return _TOGETHER

    def plan(
        self, sequences: TokenPairs, max_batch_tokens: int | None = None, *, new_tokens: int = 0
    ) -> list[PrefixTree]:
        """Return the trees of the sequences by what they share, although the engine decides what it computes.

        Raises:
            ContextOverflowError: if a sequence is longer than the model's context.
            InputError: if there is no sequence.
        """
        expect(len(sequences) > 0, "sequences", "at least one", sequences)
        for i, (context, continuation) in enumerate(sequences):
            length = len(context) + max(len(continuation) - 1, 0)
            if self._max_length is not None and length > self._max_length:
                raise ContextOverflowError(
                    f"sequences[{i}] is {length} tokens long, the context of {self.name} is {self._max_length}"
                )
        return partition(sequences, max_batch_tokens or _TOGETHER)

    def score(
        self, sequences: TokenPairs, *, max_batch_tokens: int | None = None, trees: Sequence[PrefixTree] | None = None
    ) -> SequenceScores:
        """Score (context, continuation) pairs of token ids, sending equal pairs once.

        Args:
            sequences: contexts hold at least one token; an empty continuation scores 0.
            max_batch_tokens, trees: accepted for compatibility, ignored.

        Raises:
            ContextOverflowError: if a sequence is longer than the model's context.
            EngineError: if the engine fails, or gives no log-probabilities of prompts.
            NumericsError: if a log-likelihood is not finite.
        """
        started = time.perf_counter()
        if trees is None:
            self.plan(sequences)
        keys: list[_Key] = []
        for i, (context, continuation) in enumerate(sequences):
            expect(len(context) > 0, f"sequences[{i}]", "a context of at least one token", context)
            keys.append(((*map(int, context), *map(int, continuation)), len(context)))
        requests = self._requests(keys)
        replies = self._all(self._scored, requests)
        scored = {key: one for reply in replies for key, one in reply.items()}
        values = [np.array(scored[key].token_logprobs if key in scored else [], dtype=np.float64) for key in keys]
        for i, own in enumerate(values):
            if not np.isfinite(own).all():
                raise NumericsError(f"sequence {i}: a log-likelihood from the engine is not finite")
        counts = [next(iter(reply.values())).computed_tokens for reply in replies]
        given = sum(len(request.tokens) for request in requests)
        computed = given if None in counts else sum(filter(None, counts))
        count = np.array([len(own) for own in values], dtype=np.int64)
        stats = TreeStats(len(keys), sum(len(tokens) for tokens, _ in keys), computed, int(count.sum()))
        return SequenceScores(
            logprob=np.array([own.sum() for own in values]),
            num_tokens=count,
            is_greedy=np.array([key not in scored or scored[key].is_greedy for key in keys], dtype=bool),
            token_logprobs=values,
            stats=stats,
            passes=len(requests),
            seconds=time.perf_counter() - started,
        )

    def generate(
        self, prompts: Iterable[TextOrTokens], **options: Unpack[GenerateArguments]
    ) -> Results[list[Generation]]:
        """Return texts for each prompt, with the arguments of `Reader.generate`.

        Samples follow the engine's own random numbers. An engine that returns no token ids leaves open whether a text
        ended by itself or by a stop string ("eos" then), and which tokens it has (the tokens of its text then).
        """
        started = time.perf_counter()
        settings = GenerateOptions(**options)
        rows = []
        for i, prompt in enumerate(prompts):
            tokens = self.encoder.prompt_tokens(prompt, f"prompts[{i}]", special_tokens=settings.special_tokens)
            kept = leave_room(
                list(map(int, tokens)),
                settings.max_new_tokens,
                self._max_length,
                settings.on_overflow,
                name=f"prompts[{i}]",
                of=self.name,
                last_counts=True,
            )
            rows.append((kept, len(tokens) - len(kept)))
        texts = self._all(lambda row: self._written(row[0], row[1], settings), rows)
        given = sum(len(tokens) for tokens, _ in rows)
        new = sum(len(text.token_ids) for group in texts for text in group)
        stats = TreeStats(len(rows) * settings.n, given * settings.n + new, given + new, new)
        return Results(texts, stats, len(rows), time.perf_counter() - started)

    def _requests(self, keys: Iterable[_Key]) -> list[_HttpRequest]:
        """Return the requests for sequences: each once, equal prefixes in order, next tokens of a context together."""
        most = self._dialect.most_labels
        whole: set[_Key] = set()
        labels: dict[tuple[int, ...], set[int]] = {}
        for tokens, first in keys:
            if most and len(tokens) - first == 1:
                labels.setdefault(tokens[:first], set()).add(tokens[first])
            elif len(tokens) > first:
                whole.add((tokens, first))
        requests = [_HttpRequest(tokens, first) for tokens, first in whole]
        for context, wanted in labels.items():
            ordered = sorted(wanted)
            parts = [tuple(ordered[i : i + most]) for i in range(0, len(ordered), most)]
            requests += [_HttpRequest(context, len(context), part) for part in parts]
        return sorted(requests)

    def _scored(self, request: _HttpRequest) -> dict[_Key, Scored]:
        tokens, first, labels = request
        dialect = self._dialect
        if not labels:
            reply = self._post(dialect.path, dialect.ask(self.name, tokens, first), dialect.reply)
            if isinstance(reply, Completion):
                self._check_beginning(reply, tokens)
            return {(tokens, first): dialect.read(reply, tokens, first)}
        reply = self._post(dialect.path, dialect.ask_labels(self.name, tokens, labels), dialect.reply)
        found = dialect.read_labels(reply, tokens, labels)
        return {((*tokens, label), first): one for label, one in zip(labels, found, strict=True)}

    def _check_beginning(self, reply: Completion, tokens: Sequence[int]) -> None:
        """Raise EngineError if an engine that does not count its tokens echoes a prompt one token late."""
        echoed = (reply.choices[0].logprobs or Logprobs()).tokens if reply.choices else None
        if reply.usage is not None or echoed is None or len(echoed) != len(tokens) + 1:
            return
        own = [self.encoder.text([token]) for token in tokens]
        if own != echoed[:-1] and own == echoed[1:]:
            raise EngineError(
                f"the engine at {self.url} puts a token before the prompt, so that its numbers are other tokens'; "
                "switch that off in the engine"
            )

    def _written(self, tokens: Sequence[int], cut: int, settings: GenerateOptions) -> list[Generation]:
        room = settings.max_new_tokens if self._max_length is None else self._max_length - len(tokens)
        own = self._dialect.takes_token_ids
        stops = Stops(self.encoder, settings.stop)
        if own:  # such engines look for stop strings in the text without special tokens
            mixed = [text for text in stops.special if text not in self.encoder.special]
            expect(not mixed, "stop", f"no text around a special token, which the {self.engine} engine skips", mixed)
        asked: dict[str, Any] = {
            "model": self.name,
            "prompt": tokens,
            "max_tokens": min(settings.max_new_tokens, room),
            "n": settings.n,
            "temperature": settings.temperature,
            "seed": settings.seed,
            "top_p": settings.top_p,
            "stop": list(settings.stop) or None,
            "logprobs": 1 if settings.token_logprobs else None,
            "return_token_ids": own or None,
            "top_k": settings.top_k,
            "repetition_penalty": None if settings.repetition_penalty == 1 else settings.repetition_penalty,
            "stop_token_ids": [*settings.stop_token_ids, *(stops.token_ids if own else ())] or None,
        }
        for name in ("top_k", "stop_token_ids", "repetition_penalty"):
            unknown = f"None, since the {self.engine} engine does not know it"
            expect(asked[name] is None or own, name, unknown, asked[name])
        body = {name: value for name, value in asked.items() if value is not None}
        reply = self._post("/v1/completions", body, Completion)
        self._dialect.check_prompt(reply, len(tokens))
        choices = sorted(reply.choices, key=lambda choice: choice.index)
        if len(choices) != settings.n:
            raise EngineError(f"the engine at {self.url} gave {len(choices)} texts, expected {settings.n}")
        return [self._generation(choice, len(tokens), cut, settings) for choice in choices]

    def _generation(self, choice: EngineChoice, given: int, cut: int, settings: GenerateOptions) -> Generation:
        text, ids = choice.text or "", choice.token_ids
        reason = "length" if choice.finish_reason == "length" else "eos" if choice.stop_reason is None else "stop"
        tokens = self.encoder.piece(text) if ids is None else [token for token in ids if token not in self.end_tokens]
        logprobs = None
        if settings.token_logprobs:
            found = choice.logprobs or Logprobs()
            logprobs = [value for value in found.token_logprobs or [] if value is not None]
            if found.token_logprobs is None or len(logprobs) != len(found.token_logprobs):
                raise EngineError(f"the engine at {self.url} generated a text without log-probabilities")
            own = ids if ids is not None else found.tokens
            expected = len(logprobs if own is None else own)
            if len(logprobs) != expected or expected > settings.max_new_tokens:
                raise EngineError(
                    f"the engine at {self.url} gave {len(logprobs)} log-probabilities for a text of {expected} tokens, "
                    f"of at most {settings.max_new_tokens}"
                )
        return Generation(text, tokens, reason, given, logprobs, cut)

    def _all(self, run: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Return run(item) for each item, several at once, or raise the first error."""
        if not items:
            return []
        with ThreadPoolExecutor(min(self.concurrency, len(items))) as pool:
            futures = [pool.submit(run, item) for item in items]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _post(self, path: str, body: dict[str, Any], kind: type[ReplyType]) -> ReplyType:
        return parse(self._request("POST", path, json=body), kind, self.url)

    def _request(self, method: str, path: str, **content: Any) -> bytes:
        """Return the body of the reply, after as many attempts as it takes."""
        import httpx

        failure = ""
        for attempt in range(self.retries + 1):
            wait = min(_LONGEST_WAIT, 0.25 * 2**attempt) * random.uniform(0.5, 1.0)  # nosec B311 # no secret
            try:
                reply, body = self._attempt(method, path, content)
            except httpx.RequestError as error:
                failure = f"{type(error).__name__}: {error}"
            else:
                if reply.status_code < 400:
                    return body
                failure = f"{reply.status_code}: {_message(body)}"
                if reply.status_code != 429 and reply.status_code < 500:
                    break
                after = reply.headers.get("retry-after", "")
                wait = min(_LONGEST_WAIT, float(after)) if after.isdecimal() else wait
            if attempt < self.retries:
                time.sleep(wait)
        raise EngineError(f"the engine at {self.url} failed on {path}: {failure}")

    def _attempt(self, method: str, path: str, content: dict[str, Any]) -> tuple[Any, bytes]:
        """Return a reply and its unpacked body, reading for `timeout` seconds and `_MOST_BYTES` at most."""
        import httpx

        ends, body = time.monotonic() + self.timeout, bytearray()
        with self._client.stream(method, path, **content) as reply:
            for part in reply.iter_bytes():
                body += part
                if len(body) > _MOST_BYTES:
                    raise EngineError(f"the engine at {self.url} answered {path} with more than {_MOST_BYTES:,} bytes")
                if time.monotonic() > ends:
                    raise httpx.ReadTimeout(f"the reply was not complete after {self.timeout:g} s")
        return reply, bytes(body)

    def _served(self, model: str | None) -> ServedModel:
        """Return the engine's entry of a model."""
        entries = parse(self._request("GET", "/v1/models"), ServedModels, self.url).data
        served = [entry.id for entry in entries]
        if model is None and len(served) == 1:
            return entries[0]
        if model is not None and model in served:
            return entries[served.index(model)]
        wanted = "one model, or model=" if model is None else repr(model)
        raise EngineError(f"model: expected {wanted} at {self.url}, which serves {', '.join(served) or 'none'}")

    def _found_engine(self) -> str:
        import httpx

        for name, path in PROBES.items():
            try:
                if self._attempt("GET", path, {})[0].status_code == 200:
                    return name
            except httpx.RequestError:  # asked again with every request
                continue
        return "openai"


def tokenizer_for(tokenizer: Any) -> Any:
    """Return a tokenizer, or the one of a name or a folder."""
    wanted = "a transformers tokenizer, or its name or folder"
    if not isinstance(tokenizer, (str, os.PathLike)):
        expect(callable(tokenizer) and hasattr(tokenizer, "bos_token_id"), "tokenizer", wanted, tokenizer)
        return tokenizer
    import transformers

    name = os.fspath(tokenizer)
    if is_packaged(name) and is_cached(name):
        file = file_of(name)
        own = tokenizer_of(GgufFile(file).metadata, str(file))
        own.name_or_path = str(file)
        return own
    with rejecting(f"tokenizer: expected {wanted}, got {name!r}", OSError, ValueError):
        # The name may be the engine's: without this, transformers asks on standard input whether to run its code.
        return transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)


def _message(body: bytes) -> str:
    """Return what an engine says about its failure."""
    text = body[:10_000].decode(errors="replace")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return text[:300]
    error = said.get("error", said) if isinstance(said, dict) else said
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]
