"""fastreader serve."""

from __future__ import annotations

import ipaddress
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from fastreader.cli import options
from fastreader.cli.passages import Stored
from fastreader.cli.stopping import Stopped
from fastreader.core.checks import expect
from fastreader.errors import MissingExtraError

log = logging.getLogger(__name__)
_KEY = "FASTREADER_SERVE_KEY"


@dataclass(frozen=True)
class BrowserArguments:
    """Name the hosts and pages from which browsers may call the server."""

    panel: ClassVar[str] = "Browsers"
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A further name of this machine that clients without a key may use; repeat for several.",
            show_default=False,
        ),
    ] = None
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="An origin of web pages that may call the server, * for all; repeat for several.", show_default=False
        ),
    ] = None


@dataclass(frozen=True)
class PassageArguments:
    """Say how much is kept of the passages that are read."""

    panel: ClassVar[str] = "Passages that come back"
    passage_cache: Annotated[
        bool,
        typer.Option(
            "--passage-cache/--no-passage-cache", help="Keep keys and values of passages, apart for each API key."
        ),
    ] = True
    passage_cache_mb: Annotated[
        float | None,
        typer.Option(
            help="Memory for them, in MB, of all keys together.", min=0.001, show_default="a tenth of what is free"
        ),
    ] = None
    passage_folder: Annotated[
        Path | None,
        typer.Option(
            help="Keep them as files too, for the next start and other servers of this machine.", show_default=False
        ),
    ] = None
    passage_folder_gb: Annotated[float, typer.Option(help="Limit on these files, in GB.", min=0.001)] = 16.0
    passage_stored: Annotated[
        Stored, typer.Option(help="int8 rounds keys and values, to a half or a quarter of the memory and files.")
    ] = Stored.exact

    def limit(self) -> int | None:
        """Return the memory in bytes, 0 to keep nothing, or None for the default.

        Raises:
            InputError: if there is a limit, and nothing is kept.
        """
        most = self.passage_cache_mb
        expect(self.passage_cache or most is None, "--passage-cache-mb", "no limit with --no-passage-cache", most)
        if not self.passage_cache:
            return 0
        return None if most is None else int(most * 1e6)


@options.spread
def serve(
    *,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for all, which needs a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A key that requests need as a bearer token; repeat for several. One may be in {_KEY}.",
            show_default=False,
        ),
    ] = None,
    open: Annotated[bool, typer.Option("--open", help="Serve requests without a key, at any address.")] = False,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="A further name for the model in requests; repeat for several.", show_default=False),
    ] = None,
    max_requests: Annotated[
        int, typer.Option(help="At most N requests running or waiting; further ones get 429.", min=1, max=4096)
    ] = 64,
    max_body_mb: Annotated[
        float, typer.Option(help="Largest body of a request, in MB; others get 413.", min=0.001)
    ] = 2.0,
    timeout: Annotated[float, typer.Option(help="Seconds a request may take before it gets 504.", min=0.001)] = 60.0,
    pack: Annotated[bool, typer.Option("--pack/--no-pack", help="Let requests share passes.")] = True,
    pack_ms: Annotated[
        float, typer.Option(help="Milliseconds a pass waits for requests to join it.", min=0, max=1000)
    ] = 5.0,
    max_batch_tokens: options.MaxBatchTokensOption = None,
    pool: Annotated[
        bool,
        typer.Option("--pool/--no-pool", help="Learn an unknown position bias from the scores of requests."),
    ] = True,
    pool_file: Annotated[
        Path | None, typer.Option(help="Keep the pool in this JSON file, numbers only.", show_default=False)
    ] = None,
    passages: PassageArguments,
    browsers: BrowserArguments,
    reader: options.ReaderArguments,
) -> None:
    """Answer requests over HTTP: /rerank, /score, /v1/completions, /v1/chat/completions, /v1/read, and a page at /.

    Requests that come at the same time share forward passes. On SIGTERM the server answers the requests that it has
    accepted, and stops.

    Examples:

      fastreader serve

      fastreader serve --model Qwen/Qwen3-0.6B --port 8080 --api-key "$KEY"
    """
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("uvicorn", "serve") from error
    from fastreader.integrations.serve.app import create_app
    from fastreader.integrations.serve.listening import listening
    from fastreader.integrations.serve.settings import ServerSettings

    # Not as the option's own variable, whose value would be split at spaces.
    keys = tuple(api_key or filter(None, [os.environ.get(_KEY)]))
    expect(
        bool(keys) or open or _is_local(host), "--host", "this machine, unless there is an --api-key or --open", host
    )
    settings = ServerSettings(
        keys=keys,
        names=tuple(served_model_name or ()),
        hosts=tuple(browsers.allow_host or ()),
        origins=tuple(browsers.cors_origin or ()),
        max_requests=max_requests,
        max_body_bytes=int(max_body_mb * 1e6),
        timeout=timeout,
        pack=pack,
        pack_seconds=pack_ms / 1000,
        max_batch_tokens=max_batch_tokens,
        pool=pool,
        pool_file=None if pool_file is None else str(pool_file),
        passage_cache_bytes=passages.limit(),
        passage_folder=None if passages.passage_folder is None else str(passages.passage_folder),
        passage_folder_bytes=int(passages.passage_folder_gb * 1e9),
        passage_stored=passages.passage_stored.value,
    )
    loaded = reader.load()
    log.info("%r", loaded)
    try:
        uvicorn.run(create_app(loaded, settings), host=host, port=port, log_level="info", **listening(settings))
    except Stopped:  # uvicorn raises the signal again once every request is answered
        log.info("every request is answered; the server has stopped")


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
