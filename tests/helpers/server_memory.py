"""Print the peak memory of requests whose bodies are as large as a server accepts."""

import asyncio
import json
from pathlib import Path

from fastreader import Reader
from fastreader.integrations.serve.app import create_app
from fastreader.integrations.serve.settings import ServerSettings
from helpers.support import byte_tokenizer, tiny_llama

SETTINGS = ServerSettings(timeout=5)


def filled(start, piece, end):
    count = (SETTINGS.max_body_bytes - len(start) - len(end)) // (len(piece) + 1)
    return (start + ",".join([piece] * count) + end).encode()


def text(start, end):
    size = SETTINGS.max_body_bytes - len(start) - len(end) - 2
    return (start + '"' + ("ab " * size)[:size] + '"' + end).encode()


NESTED = '{"query":"q","documents":[{"text":"a","x":[', "]}]}"
CHAT = '{"max_tokens":1,"messages":[{"role":"user","content":'
BODIES = [
    ("/rerank", filled(NESTED[0], '{"":0}', NESTED[1])),
    ("/rerank", filled(NESTED[0], "[0]", NESTED[1])),
    ("/rerank", filled(NESTED[0], '"ab"', NESTED[1])),
    ("/rerank", filled(NESTED[0], '"\\\\"', NESTED[1])),
    ("/rerank", filled('{"query":"q","documents":["a"],"x":[', '{"":0}', "]}")),
    ("/rerank", filled('{"query":"q","documents":[{"text":"a",', '"a":0', "}]}")),
    ("/rerank", text('{"query":', ',"documents":["a"]}')),
    ("/rerank", text('{"query":"q","documents":[', "]}")),
    ("/v1/chat/completions", filled(CHAT + "[", '{"type":"text","text":"a"}', "]}]}")),
    ("/v1/chat/completions", filled(CHAT + '"a"}],"chat_template_kwargs":{"a":[', '{"":0}', "]}}")),
]


async def call(app, path, body):
    sent, given = [], [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        return given.pop() if given else await asyncio.sleep(1000)

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    await app(
        {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
            "scheme": "http",
            "root_path": "",
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
        },
        receive,
        send,
    )
    return sent[0]["status"]


def peak(name):
    return next(int(line.split()[1]) / 1024 for line in Path("/proc/self/status").open() if line.startswith(name))


async def main():
    app = create_app(Reader.load((tiny_llama(), byte_tokenizer()), device="cpu", check="off"), SETTINGS)
    async with app.router.lifespan_context(app):
        for body in ({"query": "q", "documents": ["a b"] * 50}, {"query": "q", "documents": ["a " * 900] * 9}):
            await call(app, "/rerank", json.dumps(body).encode())
        for path, body in BODIES:
            Path("/proc/self/clear_refs").write_text("5")
            before = peak("VmRSS")
            status = await call(app, path, body)
            row = {"path": path, "body": body[:60].decode(), "bytes": len(body), "status": status}
            print(json.dumps({**row, "megabytes": round(peak("VmHWM") - before, 1)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
