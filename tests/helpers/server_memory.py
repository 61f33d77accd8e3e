"""Print the peak memory of requests that ask for as much as a server accepts."""

import asyncio
import ctypes
import gc
import json
import sys
from pathlib import Path

from fastreader import Reader
from fastreader.integrations.serve.app import create_app
from fastreader.integrations.serve.settings import ServerSettings
from helpers.support import LONG_FORMS, byte_tokenizer, tiny_llama

SETTINGS = ServerSettings(timeout=1.0, passage_cache_bytes=0)


def filled(start, piece, end):
    count = (SETTINGS.max_body_bytes - len(start) - len(end)) // (len(piece) + 1)
    return (start + ",".join([piece] * count) + end).encode()


def text(start, end):
    size = SETTINGS.max_body_bytes - len(start) - len(end) - 2
    return (start + '"' + ("ab " * size)[:size] + '"' + end).encode()


def whole(**fields):
    return json.dumps(fields, ensure_ascii=False).encode()


VOCABULARY = 49_152  # of a real model: its logits take more memory than a few hundred bytes' do
RIVER = "the river is in Cairo and ab cd ef gh "
TEXTS = [f"{i} {RIVER * 5}" for i in range(10_000)]
PROMPTS = [f"{i} {RIVER * 26}" for i in range(1_950)]
TOKENS = "[" + ",".join(["1"] * 520) + "]"
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
    ("/v1/completions", filled('{"prompt":[', "1", "]}")),
    ("/v1/completions", whole(prompt=list(range(10_000, 1_010_000)))),
    ("/v1/completions", whole(prompt=list(range(10_000, 609_000)))),
    ("/v1/completions", filled('{"temperature":0,"max_tokens":1,"prompt":[', TOKENS, "]}")),
    ("/v1/completions", whole(prompt=PROMPTS, max_tokens=1)),
    ("/v1/completions", whole(prompt=PROMPTS, max_tokens=0, echo=True)),
    ("/v1/completions", whole(prompt="\U0001f42b" * 500_000)),
    ("/v1/completions", whole(prompt=[RIVER] * 2_000, max_tokens=1, temperature=1)),
    ("/v1/completions", whole(prompt="river", max_tokens=2, n=128, temperature=1)),
    ("/v1/completions", whole(prompt="river", max_tokens=2, n=128, temperature=1, top_p=0.9, logprobs=20)),
    ("/v1/completions", whole(prompt="river", max_tokens=2, n=128, temperature=1, top_k=VOCABULARY - 1)),
    ("/v1/completions", whole(prompt=RIVER * 50, max_tokens=0, echo=True, logprobs=20)),
    ("/score", whole(text_1="q", text_2=TEXTS)),
    ("/score", whole(text_1=RIVER * 5, text_2=[str(i) for i in range(10_000)])),
    ("/score", whole(text_1=TEXTS[:5_000], text_2=TEXTS[:5_000])),
    ("/rerank", whole(query="q", documents=TEXTS, method="yes_no")),
    ("/rerank", whole(query="q", documents=TEXTS, max_tokens_per_doc=100)),
    ("/rerank", whole(query="q", documents=["\x7f" * 2_000] * 1_000)),
    ("/rerank", whole(query="q", documents=["\U0001f42b" * 2_000] * 240)),
    ("/v1/read", whole(question="q", passages=["\x7f" * 20_000] * 100, permutations="random:100")),
    ("/v1/read", whole(question="q", passages=TEXTS[:8], candidates=TEXTS[:90], permutations="random:100")),
    ("/v1/read", whole(question="q", passages=TEXTS[:4], candidates=TEXTS[:60], permutations="cyclic")),
    ("/v1/chat/completions", whole(messages=[{"role": "user", "content": "<|user|>" * 2_000}] * 120)),
]


LARGEST = (2, 14, 17, 19, 22, 25, 27, 28, 31)  # those that took the most of each endpoint


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


def busy():
    """Return whether a request's thread or that of the passes works."""
    names = []
    for frame in sys._current_frames().values():
        while frame is not None:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
    return any(name.startswith("answer_") or name in ("_pass_once", "_write_once") for name in names)


async def main():
    app = create_app(
        Reader.load((tiny_llama(vocab_size=VOCABULARY), byte_tokenizer()), device="cpu", check="off"), SETTINGS
    )
    async with app.router.lifespan_context(app):
        for body in ({"query": "q", "documents": ["a b"] * 50}, {"query": "q", "documents": ["a " * 900] * 9}):
            await call(app, "/rerank", json.dumps(body).encode())
        for path, body in BODIES if LONG_FORMS else [BODIES[i] for i in LARGEST]:
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)  # what was freed would hide what the next body takes
            Path("/proc/self/clear_refs").write_text("5")
            before = peak("VmRSS")
            status = await call(app, path, body)
            while busy():  # a request that was too late ends within a part
                await asyncio.sleep(0.01)
            row = {"path": path, "body": body[:120].decode(errors="ignore"), "bytes": len(body), "status": status}
            print(json.dumps({**row, "megabytes": round(peak("VmHWM") - before, 1)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
