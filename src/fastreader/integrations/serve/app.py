"""create_app: the server as an ASGI application."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import inspect
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from html import escape
from importlib.resources import files
from typing import Any

from fastreader import __version__
from fastreader.errors import FastreaderError, MissingExtraError
from fastreader.integrations.serve.answers import ServerPool, answer_read, answer_rerank, answer_score
from fastreader.integrations.serve.bodies import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    ReadRequest,
    Refusal,
    RerankRequest,
    ScoreRequest,
    TokenizeRequest,
    error_body,
    explained,
    parameter_of,
    status_of,
)
from fastreader.integrations.serve.chat import answer_chat
from fastreader.integrations.serve.completions import answer_completion
from fastreader.integrations.serve.entry import KEY, BodyLimit, Entry
from fastreader.integrations.serve.packed_reader import PackedReader
from fastreader.integrations.serve.pass_queue import TOO_LONG, DeadlineError, Packer, Totals
from fastreader.integrations.serve.passage_caches import PassageCaches
from fastreader.integrations.serve.settings import ServerSettings
from fastreader.integrations.serve.stream import Events, WholeAnswer
from fastreader.integrations.serve.tokens import answer_detokenize, answer_tokenize
from fastreader.models.passage_cache.cache import CacheInfo
from fastreader.reader.base import ReaderBase

try:
    from fastapi import FastAPI, Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.middleware.cors import CORSMiddleware
    from fastapi.responses import JSONResponse
    from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from starlette.exceptions import HTTPException
except ImportError as error:
    raise MissingExtraError("fastapi and prometheus-client", "serve") from error

log = logging.getLogger(__name__)
_LEFT = 0.25  # seconds between two looks at whether the client is still there
# What other servers have at paths of these words, and this one has not.
_INSTEAD = (
    ("embed|pooling|similarity", "this server returns no embeddings, /v1/rerank and /score compare texts"),
    ("classify|predict", "this server has no classes, /score rates texts and /v1/completions has logprobs of labels"),
    ("rerank", "documents are ranked by /v1/rerank"),
    ("chat|generat|completion|messages|responses|invocations", "texts are written by /v1/chat/completions"),
    ("tokenize", "texts are tokenized by /tokenize"),
    ("info|props|version|ping|ready|load", "the state and version are at /health"),
)
_BODIES = 4  # times the largest body: bytes that unfinished bodies, and answers that are not taken, may hold


def create_app(reader: ReaderBase, settings: ServerSettings | None = None) -> FastAPI:
    """Return the server of a reader.

    Args:
        reader: a `Reader`; nothing else should use it while the server runs.
        settings: limits and keys.

    Returns:
        A FastAPI application: `/rerank`, `/v1/rerank`, `/v2/rerank`, `/score`, `/v1/score`, `/v1/completions`,
        `/v1/chat/completions`, `/v1/read`, `/tokenize`, `/detokenize`, `/v1/models`, `/health`, `/metrics`, a page at
        `/`, and its description at `/openapi.json`.

    Raises:
        MissingExtraError: if FastAPI or prometheus-client is not installed.
        InputError: if `settings` give caches of passages to a reader that cannot have one.
    """
    return _Server(reader, settings or ServerSettings()).app


class _Server:
    def __init__(self, reader: ReaderBase, settings: ServerSettings) -> None:
        self.reader, self.settings, self.created = reader, settings, int(time.time())
        self.packer: Packer | None = None
        self.pooled = ServerPool(settings)
        self.caches = PassageCaches(reader, settings)
        self.active = 0  # requests that are worked on, or whose answers are not sent yet
        self.unsent = 0  # bytes of answers
        self.names = (reader.name, *settings.names)
        self.metrics = Metrics(lambda: self._running().totals, lambda: self.active)
        self.app = FastAPI(
            title="fastreader",
            version=__version__,
            lifespan=self._lifespan,
            docs_url=None,  # it would run scripts of another host here
            redoc_url=None,
            redirect_slashes=False,  # it would lead to whatever the Host header names
        )
        most, seconds = settings.max_body_bytes, settings.timeout
        self.app.add_middleware(BodyLimit, most=most, seconds=seconds, together=_BODIES * most)
        # The last one added comes first.
        self.app.add_middleware(
            Entry, keys=settings.keys, add=self.metrics.add, hosts=settings.hosts, seconds=2 * seconds
        )
        if settings.origins:
            self.app.add_middleware(
                CORSMiddleware, allow_origins=settings.origins, allow_methods=["*"], allow_headers=["*"]
            )
        self._add_errors()
        self._add_answers()
        self._add_facts()

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        self.packer = Packer(self.reader, self.settings)
        self.pool = ThreadPoolExecutor(self.settings.max_requests, thread_name_prefix="fastreader-request")
        try:
            yield
        finally:
            await asyncio.to_thread(self.pool.shutdown)
            await asyncio.to_thread(self.packer.close)

    def _running(self) -> Packer:
        if self.packer is None:
            raise FastreaderError("the server has not started; run the application with its lifespan")
        return self.packer

    async def _work(self, request: Request, body: Any, answer: Callable[..., Any]) -> Response:
        """Run a request's function in a thread, within the limits, and return what it returns or streams."""
        limits = self.settings
        model = body.model
        if model is not None and model not in self.names:
            raise Refusal(404, f"model: expected {' or '.join(self.names)}, got {model!r}", "not_found_error")
        if self.active >= limits.max_requests:
            raise Refusal(429, f"{limits.max_requests} requests are under way; try again soon", "overloaded_error")
        deadline = time.monotonic() + limits.timeout
        reader = PackedReader(self._running(), deadline, self.caches.of(request.scope[KEY]))
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Any]()
        if getattr(body, "stream", False):
            answer = functools.partial(answer, emit=lambda event: loop.call_soon_threadsafe(events.put_nowait, event))
        self.active += 1
        task = loop.run_in_executor(self.pool, answer, body, reader)
        task.add_done_callback(events.put_nowait)

        async def following() -> Any:
            """Return the next event, or the task when it is done."""
            while True:
                with suppress(TimeoutError):
                    return await asyncio.wait_for(events.get(), _LEFT)
                late = time.monotonic() > deadline + _LEFT  # it computes outside of passes, and sees its deadline later
                if late or await request.is_disconnected():
                    reader.cancel()
                if late:
                    raise DeadlineError(TOO_LONG)

        async def streamed(event: Any) -> AsyncIterator[Any]:
            try:
                while event is not task:
                    yield event
                    event = await following()
                task.result()
            except Exception as error:
                yield json.loads(_failure(*self._explained(request, error)).body)
            finally:
                reader.cancel()

        def release() -> None:
            self.active -= 1

        def finished(done: asyncio.Future[Any]) -> None:
            release()
            if not done.cancelled():
                done.exception()  # seen, whether or not somebody still waits for it

        def release_when_done() -> None:
            task.add_done_callback(finished)

        def waiting(count: int) -> None:
            self.unsent += count

        try:
            first = await following()
            if first is not task:
                return Events(streamed(first), release_when_done)
            found = WholeAnswer(task.result(), waiting, release)
            if self.unsent + len(found.body) > _BODIES * limits.max_body_bytes:
                raise Refusal(503, "answers that clients do not take fill the server's memory", "overloaded_error")
            return found
        except BaseException as error:
            release_when_done()
            if not isinstance(error, Exception):
                raise
            raise Refusal(*self._explained(request, error)) from error

    def _explained(self, request: Request, error: Exception) -> tuple[int, str, str]:
        """Return status, message and type of an error, and log what the client is not shown."""
        if isinstance(error, Refusal):
            return error.status, str(error), error.kind
        if isinstance(error, FastreaderError):
            status, kind = status_of(error)
            if status == 500:
                log.error("%s: %s", request.url.path, error)
            return status, str(error), kind
        log.error("%s failed", request.url.path, exc_info=error)
        return 500, "the server failed; its log says how", "server_error"

    def _add_errors(self) -> None:
        app = self.app

        async def failed(request: Request, error: Exception) -> Response:
            return _failure(*self._explained(request, error))

        for kind in (Refusal, FastreaderError, Exception):
            app.add_exception_handler(kind, failed)

        @app.exception_handler(RequestValidationError)
        async def invalid(request: Request, error: RequestValidationError) -> Response:
            status, message = explained(error.errors())
            return _failure(status, message, "invalid_request_error")

        @app.exception_handler(HTTPException)
        async def no_such(request: Request, error: HTTPException) -> Response:
            message = str(error.detail)
            if error.status_code == 404:
                paths = sorted({getattr(route, "path", "") for route in app.routes} - {"/", "/openapi.json"})
                instead = next((text for words, text in _INSTEAD if re.search(words, request.url.path)), "no such path")
                message = f"{instead}; this server has {', '.join(paths)}"
            return _failure(error.status_code, message, "invalid_request_error", error.headers)

    def _add_answers(self) -> None:
        self._add_answer(RerankRequest, answer_rerank, "/rerank", "/v1/rerank", "/v2/rerank", pooled=self.pooled)
        self._add_answer(ScoreRequest, answer_score, "/score", "/v1/score")
        self._add_answer(CompletionRequest, answer_completion, "/v1/completions")
        self._add_answer(ChatRequest, answer_chat, "/v1/chat/completions")
        self._add_answer(TokenizeRequest, answer_tokenize, "/tokenize")
        self._add_answer(DetokenizeRequest, answer_detokenize, "/detokenize")
        self._add_answer(ReadRequest, answer_read, "/v1/read", pooled=self.pooled)

    def _add_answer(self, kind: type, answer: Callable[..., Any], *paths: str, **settings: Any) -> None:
        """Answer requests with bodies of one kind at some paths."""

        async def endpoint(body: Any, request: Request) -> Response:
            return await self._work(request, body, functools.partial(answer, **settings))

        endpoint.__annotations__ = {"body": kind, "request": Request, "return": Response}
        name, does = answer.__name__.removeprefix("answer_"), inspect.getdoc(answer) or ""
        for path in paths:
            self.app.add_api_route(path, endpoint, methods=["POST"], name=name, description=does.partition("\n")[0])

    def _add_facts(self) -> None:
        app = self.app

        def about(name: str) -> dict[str, Any]:
            length = self.reader.max_length
            facts = {"created": self.created, "owned_by": "fastreader", "max_model_len": length}
            return {"id": name, "object": "model", **facts}

        @app.get("/v1/models")
        async def models() -> dict[str, Any]:
            """List the model's names."""
            return {"object": "list", "data": [about(name) for name in self.names]}

        @app.get("/v1/models/{name:path}")
        async def model(name: str) -> dict[str, Any]:
            """Describe the model by one of its names."""
            if name not in self.names:
                raise Refusal(404, f"model: expected {' or '.join(self.names)}, got {name!r}", "not_found_error")
            return about(name)

        @app.get("/health")
        async def health() -> Response:
            """Say whether requests can be answered, what the server reads with, and how far its pool is."""
            trouble = "" if self.packer is None else self.packer.trouble(self.settings.timeout)
            facts = {"status": trouble or "ok", "version": __version__, "active_requests": self.active}
            facts |= {**self.reader.describe(), "pool": self.pooled.states()}
            return JSONResponse(facts, 503 if trouble else 200)

        @app.get("/metrics")
        async def metrics(request: Request) -> Response:
            """Return counters in Prometheus' format. Passages are counted for the request's key alone."""
            text = self.metrics.text(self.caches.info(request.scope[KEY]))
            return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

        @app.get("/", include_in_schema=False)
        async def root() -> Response:
            text, policy = page(self.reader.name, self.pooled.shown())
            headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
            return Response(text, media_type="text/html; charset=utf-8", headers=headers)


def _failure(status: int, message: str, kind: str, headers: Mapping[str, str] | None = None) -> Response:
    body = error_body(message, kind, code=status, param=parameter_of(message))
    headers = {**(headers or {}), **({"Retry-After": "1"} if status in (429, 503) else {})}
    return Response(body, status, media_type="application/json", headers=headers)


@lru_cache(maxsize=4)
def page(model: str, pool: str = "") -> tuple[str, str]:
    """Return the page and its Content-Security-Policy, which lets only its own script and style run.

    Args:
        model: the reader's name, as the page shows it.
        pool: what the server's pool knows of the reader, as the page shows it; empty shows nothing.
    """
    assets = files("fastreader.integrations.serve").joinpath("assets")
    style, script = (assets.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    text = assets.joinpath("page.html").read_text(encoding="utf-8")
    text = text.replace("{{ pool }}", f'<p class="facts" id="pool">{escape(pool)}</p>\n' if pool else "")
    text = text.replace("{{ model }}", escape(model)).replace("{{ style }}", style).replace("{{ script }}", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Requests by path and status, their seconds, the passes' tokens, and look-ups of passages.

    Args:
        totals: returns what the passes computed.
        active: returns the number of requests under way.
    """

    def __init__(self, totals: Callable[[], Totals], active: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "fastreader_requests", "Requests answered.", ("path", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "fastreader_request_seconds", "Time to answer.", ("path",), buckets=SECONDS, registry=self._registry
        )
        self._totals, self._active = totals, active
        self._cached: CacheInfo | None = None
        self._registry.register(self)  # anything with `collect`

    def add(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self, cached: CacheInfo) -> bytes:
        """Return all metrics in Prometheus' text format.

        Args:
            cached: what is kept of passages for the key that asks, and how often it was found.
        """
        self._cached = cached
        text: bytes = generate_latest(self._registry)
        return text

    def collect(self) -> Iterator[Any]:
        """Yield the metrics that are read at each scrape."""
        if (cached := self._cached) is None:  # when it is registered
            return
        totals = self._totals()
        counts = (
            ("passes", "Packed passes.", totals.passes),
            ("computed_tokens", "Tokens computed in passes.", totals.computed_tokens),
            ("alone_tokens", "Tokens of the calls in separate passes that find no passage.", totals.alone_tokens),
            ("written_tokens", "Tokens of generated texts.", totals.written_tokens),
            ("passage_cache_hits", "Passages whose keys and values were found.", cached.hits),
            ("passage_cache_misses", "Passages that were looked up and read.", cached.misses),
            ("passage_cache_evictions", "Passages and headers that left memory for others.", cached.evictions),
        )
        for name, about, value in counts:
            yield CounterMetricFamily(f"fastreader_{name}", about, value=value)
        yield GaugeMetricFamily("fastreader_active_requests", "Requests under way.", value=self._active())
        held, most = cached.nbytes, cached.max_bytes
        yield GaugeMetricFamily("fastreader_passage_cache_bytes", "Memory of kept keys and values.", value=held)
        yield GaugeMetricFamily("fastreader_passage_cache_max_bytes", "The limit on this memory.", value=most)
        longest = totals.longest_pass
        yield GaugeMetricFamily("fastreader_longest_pass_seconds", "The longest pass or step so far.", value=longest)
