"""The server under load: clients that rerank and score, every answer held to the direct call.

Starts `create_app` in this process, first with packing and then without, sends the same requests from C clients for S
seconds each, and prints the rate, p50 and p95, and the tokens computed, against separate calls. An answer that
is lost, or further than 1e-3 from the direct call in relevance, ends the run. Then ten questions are sent at once
over the same three passages of 100 words. Predicted before the first run: with packing, 2 to 4 times the requests.

    python benchmarks/server_load.py --clients 16 --seconds 60 --output benchmarks/results/server_load.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import machine
import numpy as np
import uvicorn
import workloads

import fastreader as fr
from fastreader.integrations.serve.app import create_app
from fastreader.integrations.serve.settings import ServerSettings

WORDS = 100  # of a passage that ten questions share
QUESTIONS = 6  # of the demo; every pair of question and passages is ranked directly first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precision", default="fast")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    reader = fr.Reader.load(arguments.model, precision=arguments.precision)
    examples = fr.load_examples(workloads.SHORT)[:QUESTIONS]
    queries = [example.question for example in examples]
    texts = [[passage.text for passage in example.passages] for example in examples]
    direct = {
        (q, p): {r.index: r.relevance for r in fr.rerank(reader, queries[q], texts[p])}
        for q in range(len(queries))
        for p in range(len(texts))
    }
    rows = []
    for pack in (True, False):
        with serving(reader, pack) as url:
            row = load(url, arguments.clients, arguments.seconds, queries, texts, direct)
            row |= {"packing": pack, "clients": arguments.clients, "model": arguments.model, **machine.describe()}
            rows.append(row)
            print(json.dumps(row))
        if pack:
            with serving(reader, pack) as url:
                share = burst(url, queries, [" ".join((text.split() * WORDS)[:WORDS]) for text in texts[0]])
                rows.append({"burst": 10, "computed_share": share, **machine.describe()})
                print(f"10 questions at once over the same passages: {share:.3f} of the tokens")
    if arguments.output:
        with arguments.output.open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)


@contextmanager
def serving(reader: fr.Reader, pack: bool):
    """Run the server in a thread. Yield its address."""
    # Without a cache, which would save tokens in both cases: the comparison is about shared passes.
    app = create_app(reader, ServerSettings(pack=pack, timeout=300, max_requests=256, passage_cache_bytes=0))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def load(url, clients, seconds, queries, texts, direct) -> dict:
    """Send requests from all clients. Return rate, times and tokens."""
    end, times, failures = time.monotonic() + seconds, [], []

    def client(number: int) -> None:
        draw = random.Random(number)
        with httpx.Client(base_url=url, timeout=300) as http:
            while time.monotonic() < end and not failures:
                q, p = draw.randrange(len(queries)), draw.randrange(len(texts))
                score = draw.random() < 0.5
                body = {"text_1": queries[q], "text_2": texts[p]}
                started = time.perf_counter()
                if score:
                    reply = http.post("/score", json=body)
                else:
                    reply = http.post("/rerank", json={"query": queries[q], "documents": texts[p]})
                times.append(time.perf_counter() - started)
                if reply.status_code != 200:
                    failures.append(reply.text)
                    return
                found = reply.json()
                values = (
                    {row["index"]: row["score"] for row in found["data"]}
                    if score
                    else {row["index"]: row["relevance_score"] for row in found["results"]}
                )
                want = direct[q, p]
                if set(values) != set(want) or max(abs(values[i] - want[i]) for i in want) > 1e-3:
                    failures.append(f"wrong: {values} and {want}")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - started
    if failures:
        raise SystemExit(failures[0])
    told = totals(url)
    p50, p95 = np.percentile(times, [50, 95])
    return {
        "requests": len(times),
        "requests_per_second": round(len(times) / took, 3),
        "p50": round(float(p50), 3),
        "p95": round(float(p95), 3),
        "computed_share": round(told["computed"] / told["alone"], 4),
    }


def burst(url, queries, passages) -> float:
    """Send ten questions at once over the same passages. Return the computed share of the tokens of separate calls."""
    asked = [f"{queries[i % len(queries)]} ({i})" for i in range(10)]
    barrier = threading.Barrier(10)

    def ask(question: str) -> None:
        with httpx.Client(base_url=url, timeout=300) as http:
            http.get("/health")
            barrier.wait()
            http.post("/score", json={"text_1": question, "text_2": passages}).raise_for_status()

    threads = [threading.Thread(target=ask, args=(question,)) for question in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = totals(url)
    return told["computed"] / told["alone"]


def totals(url: str) -> dict[str, float]:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    found = {
        line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("fastreader_") and "{" not in line
    }
    return {name: found[f"fastreader_{name}_tokens_total"] for name in ("computed", "alone")}


if __name__ == "__main__":
    main()
