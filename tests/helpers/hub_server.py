"""A Hugging Face hub on a local port, which serves the files of folders as repositories."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "1" * 40


@contextlib.contextmanager
def hub_of(repositories: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a hub that holds folders by their ids, and the list of paths that it was asked for."""
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_HEAD(self):
            self.answer(with_body=False)

        def do_GET(self):
            self.answer(with_body=True)

        def answer(self, with_body):
            path = self.path.split("?")[0]
            asked.append(path)
            for name, folder in repositories.items():
                file = folder / path.removeprefix(f"/{name}/resolve/main/")
                if path.startswith(f"/{name}/resolve/main/") and file.is_file():
                    self.give(file.read_bytes(), with_body)
                    break
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "EntryNotFound")
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def give(self, body, with_body):
            self.send_response(200)
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
