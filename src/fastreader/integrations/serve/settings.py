"""Settings of the server."""

from __future__ import annotations

from dataclasses import dataclass

from fastreader.core.checks import check_choice, check_int, check_number, check_output, expect


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Limits and keys of a server.

    Attributes:
        keys: a request needs one of these as its bearer token; empty lets everyone in.
        names: further names by which requests may call the model.
        max_requests: requests that are worked on or wait; one more is answered with 429.
        max_body_bytes: a larger body is answered with 413.
        timeout: seconds that a request may take; then it is answered with 504.
        pack: let requests share passes; without, each has its own, for comparison.
        pack_seconds: a pass waits this long for requests to join it, and on while they come, four times at most.
        max_batch_tokens: at most this many tokens are computed in one pass, after which other requests have their turn;
            None takes what the reader computes in about a second, from 512 to 4,096 on a CPU and to 32,768 on a GPU,
            or the reader's budget if it is smaller.
        hosts: further names by which clients may call a server without a key at this machine's own addresses. Only
            "localhost" and such addresses are answered otherwise, since any web page can point a name at them.
        origins: origins of web pages that may call the server from a browser (CORS); "*" allows all.
        pool: pool the scores of requests for a reader without a calibration, and use their bias once it is settled.
        pool_file: the pool is read from this file, and written to it as it grows; None keeps it in memory.
        passage_cache_bytes: memory for keys and values of passages that were read, shared evenly by the keys, each of
            which has its own; None takes a tenth of what is free when the server is created, 0 keeps nothing.
        passage_folder: keeps them as files too, in a folder for each key; None for none.
        passage_folder_bytes: limit on these files, shared evenly by the keys.
        passage_stored: "exact", or "int8", as `PassageCache(stored=)`.
    """

    keys: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    max_requests: int = 64
    max_body_bytes: int = 2 << 20
    timeout: float = 60.0
    pack: bool = True
    pack_seconds: float = 0.005
    max_batch_tokens: int | None = None
    pool: bool = True
    pool_file: str | None = None
    passage_cache_bytes: int | None = None
    passage_folder: str | None = None
    passage_folder_bytes: int = 16 << 30
    passage_stored: str = "exact"

    def __post_init__(self) -> None:
        for name in ("keys", "names", "hosts", "origins"):
            texts = getattr(self, name)
            proper = isinstance(texts, tuple) and all(isinstance(text, str) and text for text in texts)
            expect(proper, name, "a tuple of texts that are not empty", len(texts) if name == "keys" else texts)
        sent = all(key.isascii() and key.isprintable() and key == key.strip() for key in self.keys)
        expect(sent, "keys", "printable ASCII without spaces at its ends, as a header can hold it", len(self.keys))
        check_int("max_requests", self.max_requests)
        check_int("max_body_bytes", self.max_body_bytes)
        check_number("timeout", self.timeout, above=0)
        check_number("pack_seconds", self.pack_seconds, minimum=0)
        check_int("max_batch_tokens", self.max_batch_tokens, optional=True)
        check_int("passage_cache_bytes", self.passage_cache_bytes, 0, optional=True)
        check_int("passage_folder_bytes", self.passage_folder_bytes, max(1, len(self.keys)))
        check_choice("passage_stored", self.passage_stored, ("exact", "int8"))
        if self.pool_file is not None:
            expect(self.pool, "pool_file", "None without a pool", self.pool_file)
            check_output("pool_file", self.pool_file)
