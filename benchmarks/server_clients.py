"""Do clients that leave make the others wait? 16 clients of `fastreader serve`, a third of which leave early.

Runs the server once for each of three cases: the third "leave" (each of their large requests after 0.05 to 0.5 s),
"stay" until they are answered, or are "absent". The same seed gives every client the same requests. Each request of the
other two thirds is timed; its waiting is what it took beyond the same request alone, at the start. Bar: with those that
leave no request waits longer than two passes more than with those that stay, by the longest wait of its kind. Meanwhile
`/health` has to say "ok", and to count no request soon after the last; all answers have to be those given alone.

With --relevance the model's weights are served as a reranker (LogitScore, as `relevance_speed.py` saves it), to clients
that rank and score and stay until they are answered: no answer may be wrong, and the 95th percentile is stated.

    python benchmarks/server_clients.py --seconds 60 --rounds 2 --output benchmarks/results/server_clients.jsonl
    python benchmarks/server_clients.py --relevance --clients 8 --output benchmarks/results/server_clients.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import machine
import numpy as np

KINDS = ("score", "rerank", "completions", "chat", "stream")
RANKING = KINDS[:2]
MODES = ("stay", "leave", "absent")
PASSES = 2  # longest passes that a request may wait more
WORDS = "the river runs through Cairo and Paris while bread is baked at night by old men in a house".split()  # noqa: SIM905


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--relevance", action="store_true", help="serve a reranker, and let no client leave")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rows: list[dict] = []
    kinds, modes = (RANKING, MODES[:1]) if arguments.relevance else (KINDS, MODES)
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model
        if arguments.relevance:
            import relevance_speed

            relevance_speed.save(model, Path(folder))
            model = f"{folder}/saved"
        for number in range(arguments.rounds):
            for mode in modes if number % 2 == 0 else modes[::-1]:
                with serving(model) as (url, _):
                    row = load(url, mode, arguments.seconds, arguments.seed, arguments.clients, kinds)
                row = {"mode": mode, "round": number, "seed": arguments.seed, "model": arguments.model, **row}
                row["relevance"] = arguments.relevance
                rows.append({**row, **machine.describe()})
                print(json.dumps({name: value for name, value in row.items() if name != "waits"}), flush=True)
    verdict = {"held": sound(rows)} if arguments.relevance else compare(rows)
    print(json.dumps(verdict))
    if arguments.output:
        with arguments.output.open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in [*rows, {**verdict, **machine.describe()}])
    if not verdict["held"]:
        sys.exit(1)


@contextmanager
def serving(model: str, *options: str):
    """Run the command's server in a separate process. Yield its address and the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "fastreader", "serve", "--model", model, "--port", str(port)]
    command += ["--timeout", "600", *options]  # waits are measured, not cut off
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            if process.poll() is not None:
                raise SystemExit(f"the server ended with {process.returncode}")
            try:
                httpx.get(f"{url}/health").raise_for_status()
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield url, process
    finally:
        process.terminate()
        process.wait(60)


def request(kind: str, draw: random.Random, large: bool) -> tuple[str, dict]:
    """Return path and body of a request."""

    def text(words: int) -> str:
        return " ".join(draw.choices(WORDS, k=words))

    documents, tokens = [text(50) for _ in range(30 if large else 5)], 200 if large else 16
    if kind == "score":
        return "/score", {"text_1": text(8), "text_2": documents}
    if kind == "rerank":
        return "/rerank", {"query": text(8), "documents": documents}
    if kind == "completions":
        return "/v1/completions", {"prompt": text(40), "max_tokens": tokens, "temperature": 0}
    body = {"messages": [{"role": "user", "content": text(40)}], "max_tokens": tokens, "temperature": 0}
    return "/v1/chat/completions", {**body, "stream": kind == "stream"}


def send(http: httpx.Client, path: str, body: dict) -> list[float] | None:
    """Return the scores in a reply, None for a text, once it is there as a whole."""
    reply = http.post(path, json=body)
    reply.raise_for_status()
    if body.get("stream"):
        assert reply.text.rstrip().endswith("data: [DONE]") and '"error"' not in reply.text, reply.text[-300:]
        return None
    found = reply.json()
    if path == "/score":
        return [row["score"] for row in found["data"]]
    if path == "/rerank":
        return [row["relevance_score"] for row in sorted(found["results"], key=lambda row: row["index"])]
    assert found["choices"][0]["finish_reason"] in ("stop", "length"), found
    return None


def load(url: str, mode: str, seconds: float, seed: int, clients: int, kinds: tuple[str, ...]) -> dict:
    """Send requests from all clients. Return the waits of those that stay, and what `/health` said."""
    waits: list[tuple[str, float]] = []
    failures: list[str] = []
    alone, answers = {}, {}
    with httpx.Client(base_url=url, timeout=600) as http:
        for kind in kinds:
            path, body = request(kind, random.Random(seed), False)
            send(http, path, body)
            began = time.perf_counter()
            answers[kind] = send(http, path, body)
            alone[kind] = time.perf_counter() - began
    end, left = time.monotonic() + seconds, [0]

    def client(number: int) -> None:
        leaver, count = number % 3 == 0, 0
        with httpx.Client(base_url=url, timeout=600) as http:
            while time.monotonic() < end and not failures:
                draw = random.Random(1_000_003 * seed + 1009 * number + count)
                kind, count = draw.choice(kinds), count + 1
                patience = draw.uniform(0.05, 0.5)
                path, body = request(kind, draw if leaver else random.Random(seed), leaver)
                began = time.perf_counter()
                try:
                    if leaver and mode == "leave":
                        leave(url, path, body, patience)
                        left[0] += 1
                        continue
                    found = send(http, path, body)
                except (httpx.HTTPError, AssertionError, KeyError) as error:
                    failures.append(f"{kind}: {error!r}")
                    return
                if not leaver:
                    waits.append((kind, time.perf_counter() - began - alone[kind]))
                    if found is not None and np.abs(np.array(found) - answers[kind]).max() > 1e-3:
                        failures.append(f"{kind}: {found} and alone {answers[kind]}")

    states: list[tuple[int, str]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.25):
            reply = httpx.get(f"{url}/health", timeout=30)
            states.append((reply.status_code, reply.json()["status"]))

    numbers = [number for number in range(clients) if mode != "absent" or number % 3]
    threads = [threading.Thread(target=client, args=(number,)) for number in numbers]
    watcher = threading.Thread(target=watch)
    for thread in [*threads, watcher]:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    watcher.join()
    began = time.monotonic()
    while httpx.get(f"{url}/health").json()["active_requests"] and time.monotonic() - began < 30:
        time.sleep(0.02)
    idle = time.monotonic() - began
    with httpx.Client(base_url=url, timeout=60) as http:  # the thread of the passes lives
        after = send(http, *request("rerank", random.Random(seed), False))
        longest = next(
            float(line.split()[1])
            for line in http.get("/metrics").text.splitlines()
            if line.startswith("fastreader_longest_pass_seconds")
        )
    if after is None or np.abs(np.array(after) - answers["rerank"]).max() > 1e-3:
        failures.append("the answer afterwards is another one")
    return {
        "seconds": seconds,
        "clients": len(numbers),
        "answered": len(waits),
        "left": left[0],
        "longest_pass": round(longest, 4),
        "alone": {kind: round(value, 4) for kind, value in alone.items()},
        "worst": {kind: round(max((w for k, w in waits if k == kind), default=0.0), 4) for kind in kinds},
        "p95_seconds": {
            kind: round(alone[kind] + float(np.quantile([w for k, w in waits if k == kind] or [np.nan], 0.95)), 4)
            for kind in kinds
        },
        "p50": round(float(np.median([wait for _, wait in waits])), 4) if waits else None,
        "healthy": sum(state == (200, "ok") for state in states),
        "asked": len(states),
        "idle_after": round(idle, 3),
        "failures": failures,
        "waits": [[kind, round(wait, 4)] for kind, wait in waits],
    }


def leave(url: str, path: str, body: dict, seconds: float) -> None:
    """Send a request, and close the connection after some seconds unless it is answered before."""
    try:
        with httpx.Client(base_url=url, timeout=seconds) as http, http.stream("POST", path, json=body) as reply:
            end = time.monotonic() + seconds
            for _ in reply.iter_bytes():
                if time.monotonic() > end:
                    return
    except httpx.TimeoutException:
        pass


def compare(rows: list[dict]) -> dict:
    """Return how much longer the longest wait of a kind is where clients leave, and whether the bar held."""
    longest = max(row["longest_pass"] for row in rows if row["mode"] == "leave")

    def worst(mode: str, kind: str) -> float:
        return max(row["worst"][kind] for row in rows if row["mode"] == mode)

    more = {
        f"more_than_{mode}": {kind: round(worst("leave", kind) - worst(mode, kind), 4) for kind in KINDS}
        for mode in ("stay", "absent")
    }
    within = max(more["more_than_stay"].values()) <= PASSES * longest
    held = {"sound": sound(rows), "held": sound(rows) and within}
    return {"longest_pass": longest, "allowed": round(PASSES * longest, 4), **more, **held}


def sound(rows: list[dict]) -> bool:
    """Return whether every answer was right, and the server healthy and idle in the end."""
    return all(row["healthy"] == row["asked"] and not row["failures"] and row["idle_after"] < 5 for row in rows)


if __name__ == "__main__":
    main()
