"""DSPy: a reader as its language model, `dspy.configure(lm=FastreaderLM("smollm2-135m"))`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fastreader.core.checks import check_seed, expect, rejecting
from fastreader.core.protocol import Generation
from fastreader.errors import ContextOverflowError, InputError, MissingExtraError, UnsupportedModelError
from fastreader.integrations.common import named_reader
from fastreader.reader.prompts.chat_template import render_chat
from fastreader.reader.prompts.encoder import Seam, TextEncoder

try:
    import dspy
    from dspy.lm15 import (
        ContextLengthError,
        InvalidRequestError,
        Message,
        Request,
        Response,
        TokenLogprob,
        UnsupportedFeatureError,
        Usage,
        response_to_events,
    )
except ImportError as error:
    raise MissingExtraError("dspy", "dspy") from error

NEW_TOKENS = 256  # of a text for which the caller sets no max_tokens
_LACKING = ("response_format", "tool_choice", "reasoning", "frequency_penalty", "presence_penalty", "probabilities")


def conversation_tokens(encoder: TextEncoder, messages: Sequence[tuple[str, str]]) -> list[int]:
    """Return a conversation in the model's chat template, up to where the model's answer starts.

    Special tokens written out in a message stay plain text, as in `Reader.prompt`.

    Args:
        encoder: of the reader.
        messages: (role, text) of each message; roles are "system", "user" and "assistant".

    Raises:
        InputError: if there is no message, the model has no chat template, or the template rejects the messages.
        UnsupportedModelError: if the template changes a message or writes it twice.
    """
    tokenizer = encoder.tokenizer
    expect(bool(messages), "messages", "at least one", messages)
    expect(bool(getattr(tokenizer, "chat_template", None)), "chat", "False for a model without a chat template", True)
    # The template is rendered around marks, so that only its own texts are read as special tokens.
    marks = [f"fastreader\u241e{place}\u241e" for place in range(len(messages))]
    turns = [{"role": role, "content": mark} for (role, _), mark in zip(messages, marks, strict=True)]
    roles = ", ".join(role for role, _ in messages)
    problem = f"messages: the model's chat template rejects the roles {roles}"
    with rejecting(problem, InputError):
        text = render_chat(tokenizer, turns, {}, generation=True)
    seam = Seam()
    for (_, content), mark in zip(messages, marks, strict=True):
        before, found, text = text.partition(mark)
        if not found or mark in text:
            raise UnsupportedModelError("the chat template does not keep every message as it is, once and in order")
        seam = encoder.follow(encoder.follow(seam, before, trusted=True), content)
    return encoder.closed(seam, text, trusted=True)


class _Copies:
    """The texts of one call with n > 1, which are all generated with the first and then wait here."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.waiting: list[Generation] = []


_copies: ContextVar[_Copies | None] = ContextVar("fastreader_dspy_copies", default=None)


class FastreaderEngine:
    """Answer DSPy's requests: `complete(Request) -> Response`, for `dspy.LM(engine=...)`.

    Args:
        model, device, dtype, precision: arguments of `Reader.load`, which runs at the first request.
        reader: a reader to use instead.
        chat: whether messages go through the model's chat template; otherwise their texts are joined by blank lines.
        seed: of sampling. The k-th sampled request draws with seed + k, unless it brings its own seed.

    Raises:
        InputError: if `seed` is out of range.
    """

    def __init__(
        self,
        model: str,
        *,
        reader: Any = None,
        device: str = "auto",
        dtype: str = "auto",
        precision: str = "fast",
        chat: bool = True,
        seed: int = 0,
    ) -> None:
        check_seed("seed", seed)
        self.model, self.chat, self.seed = model, chat, seed
        self._options, self._reader = (device, dtype, precision), reader
        self._sampled = itertools.count()

    def __deepcopy__(self, memo: Any) -> FastreaderEngine:
        """Return itself: a program's copies share the weights."""
        return self

    @property
    def reader(self) -> Any:
        """The reader, loaded on first use."""
        return self._reader or named_reader(self.model, *self._options)

    def complete(self, request: Request) -> Response:
        """Return one answer.

        Raises:
            UnsupportedFeatureError, InvalidRequestError, ContextLengthError: DSPy's, for what a reader lacks and for
                prompts that it rejects.
        """
        _check_supported(request)
        copies = _copies.get() or _Copies(1)
        if not copies.waiting:
            copies.waiting = self._generate(request, copies.n)
        return self._response(request, copies.waiting.pop(0))

    def stream(self, request: Request) -> Iterator[Any]:
        """Return the events of `complete`, after the whole text is generated."""
        yield from response_to_events(self.complete(request))

    def close(self) -> None:
        """Do nothing: a reader may be in use elsewhere."""

    def _generate(self, request: Request, n: int) -> list[Generation]:
        config = request.config
        own = config.seed
        seed = own if own is not None else self.seed + (next(self._sampled) if config.temperature else 0)
        try:
            texts: list[Generation] = self.reader.generate(
                [self._prompt(request)],
                n=n,
                max_new_tokens=config.max_tokens or NEW_TOKENS,
                temperature=config.temperature or 0.0,
                top_k=config.top_k,
                top_p=config.top_p,
                seed=seed,
                stop=config.stop,
                token_logprobs=config.logprobs is not None,
                progress=False,
            )[0]
        except ContextOverflowError as error:
            raise ContextLengthError(str(error)) from error
        except InputError as error:
            raise InvalidRequestError(str(error)) from error
        return texts

    def _prompt(self, request: Request) -> Any:
        messages = [("system", _text(request.system, "system"))] if request.system is not None else []
        for place, message in enumerate(request.messages):
            role = "system" if message.role == "developer" else message.role
            messages.append((role, _text(message.parts, f"messages[{place}]")))
        if self.chat:
            return conversation_tokens(self.reader.encoder, messages)
        return "\n\n".join(text for _, text in messages)

    def _response(self, request: Request, generation: Generation) -> Response:
        logprobs = None
        if generation.token_logprobs is not None:
            decode = self.reader.encoder.tokenizer.decode
            logprobs = tuple(
                TokenLogprob(decode([token]), value, token_id=token)
                for token, value in zip(generation.token_ids, generation.token_logprobs, strict=False)
            )
        return Response(
            id=None,
            model=request.model,
            message=Message.assistant(generation.text),
            finish_reason="length" if generation.finish_reason == "length" else "stop",
            usage=Usage(input_tokens=generation.prompt_tokens, output_tokens=len(generation.token_ids)),
            logprobs=logprobs,
        )


class AsyncFastreaderEngine:
    """The same in a thread, so that the event loop stays free: `dspy.LM(async_engine=...)`."""

    def __init__(self, engine: FastreaderEngine) -> None:
        self.engine = engine

    async def complete(self, request: Request) -> Response:
        """Run `FastreaderEngine.complete` in a thread."""
        return await asyncio.to_thread(self.engine.complete, request)

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """Yield the events of `complete`, after the whole text is generated."""
        for event in response_to_events(await self.complete(request)):
            yield event

    async def aclose(self) -> None:
        """Do nothing: a reader may be in use elsewhere."""


class FastreaderLM(dspy.LM):
    """A `dspy.LM` over a reader, which reads a prompt once and generates all `n` texts of a call together.

    Args:
        model, device, dtype, precision: arguments of `Reader.load`, which runs at the first call; the reader is shared.
        model_type: "chat" puts messages through the model's chat template, "text" joins them by blank lines.
        temperature: divides the logits; None and 0 decode greedily.
        max_tokens: at most this many new tokens.
        cache: whether DSPy keeps responses on disk. It tells readers apart by `model` only, not by their precision.
        reader: a reader to use instead; it is not saved with a program.
        seed: of sampling; see `FastreaderEngine`.
        options: further arguments of `dspy.LM`, and of its calls: `n`, `stop`, `logprobs`, `top_p`, `top_k`.

    Raises:
        InputError: if `model_type` or `seed` is out of range.
    """

    def __init__(
        self,
        model: str | None = None,
        model_type: str = "chat",
        temperature: float | None = None,
        max_tokens: int | None = NEW_TOKENS,
        cache: bool = False,
        *,
        reader: Any = None,
        device: str = "auto",
        dtype: str = "auto",
        precision: str = "fast",
        seed: int = 0,
        **options: Any,
    ) -> None:
        expect(model_type in ("chat", "text"), "model_type", "'chat' or 'text'", model_type)
        name = model or (reader.name if reader is not None else "smollm2-135m")
        self._reader_options = {"device": device, "dtype": dtype, "precision": precision, "seed": seed}
        engine = FastreaderEngine(name, reader=reader, chat=model_type == "chat", **self._reader_options)  # type: ignore[arg-type]
        super().__init__(
            name,
            model_type,
            temperature,
            max_tokens,
            cache,
            engine=engine,
            async_engine=AsyncFastreaderEngine(engine),
            **options,
        )

    def __call__(self, prompt: Any = None, *, messages: Any = None, **options: Any) -> Any:
        """Answer a prompt or messages, as `dspy.LM` does."""
        with self._together(options):
            return super().__call__(prompt, messages=messages, **options)

    async def acall(self, prompt: Any = None, *, messages: Any = None, **options: Any) -> Any:
        """Answer without blocking the event loop, as `dspy.LM` does."""
        with self._together(options):
            return await super().acall(prompt, messages=messages, **options)

    @contextmanager
    def _together(self, options: dict[str, Any]) -> Iterator[None]:
        n = {**self.kwargs, **options}.get("n") or 1
        token = _copies.set(_Copies(n))
        try:
            yield
        finally:
            _copies.reset(token)

    def dump_state(self) -> dict[str, Any]:
        """Return what `load_state` makes an equal model from, without a reader that was passed."""
        return {**dspy.BaseLM.dump_state(self), **self._reader_options}

    @classmethod
    def load_state(cls, state: dict[str, Any], *, allow_custom_lm_class: bool = False) -> FastreaderLM:
        """Return the model that `dump_state` described."""
        return cls(**{key: value for key, value in state.items() if not key.startswith("_")})


def _check_supported(request: Request) -> None:
    """Raise UnsupportedFeatureError if a request needs what a reader does not do."""
    config = request.config
    wanted = [f"config.{name}" for name in _LACKING if getattr(config, name)]
    wanted += [f"config.extensions: {', '.join(sorted(config.extensions))}"] if config.extensions else []
    wanted += ["config.logprobs: alternatives to the tokens of the text"] if config.logprobs else []
    wanted += ["tools"] if request.tools else []
    if wanted:
        raise UnsupportedFeatureError(f"a reader does not support {', '.join(wanted)}", feature=wanted[0])


def _text(content: Any, name: str) -> str:
    """Return the text of a message's parts."""
    if isinstance(content, str):
        return content
    for part in content:
        if part.type != "text":
            raise UnsupportedFeatureError(f"{name}: expected text, got a part of type {part.type!r}", feature=name)
    return "".join(part.text for part in content)
