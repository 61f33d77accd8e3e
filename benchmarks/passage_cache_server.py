"""Passages that come back at `fastreader serve`: answers a second with its cache of passages, and without.

Each request to `/v1/rerank` has a new question and ten of 500 passages of 100 words, drawn by Zipf's law with exponent
1, as 16 clients send them one after another. The server without the cache runs first ("without"), then the one with it:
from an empty cache ("first"), and for as long again after every passage was read ("known"). The same seed gives every
client the same requests, and answers that both servers gave must agree. Bar: "known" is at least 4 times the answers a
second of "without". "first" has no bar, since a slow machine spends the time on reading the passages.

    python benchmarks/passage_cache_server.py --output benchmarks/results/passage_cache_server.jsonl
    python benchmarks/passage_cache_server.py --seconds 5 --clients 4 --passages 20

With --soak it serves for that number of seconds with a cache for few passages, so that entries leave all the time,
and notes the server's resident memory every ten seconds. Bars: from a third of the time on memory grows by at most 1
%, and the cache never holds more than its limit.

    python benchmarks/passage_cache_server.py --soak 600 --output benchmarks/results/passage_cache_server.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import machine
import numpy as np
from passage_cache import passages
from server_clients import serving

BAR = 4.0
GROWTH = 0.01  # of resident memory, from the end of the warm-up to the end
WARM_UP = 1 / 3  # of a soak
EVERY = 10.0  # seconds between two looks at the memory
ROOM_MB, SOAK_MB = 4000.0, 300.0  # 680 and 50 passages of SmolLM2-135M with float32 products, half with bfloat16
TOLERANCE = 1e-3  # of a relevance: other passes round differently
METRICS = (
    *("computed_tokens_total", "alone_tokens_total", "passes_total"),
    *("passage_cache_hits_total", "passage_cache_misses_total", "passage_cache_evictions_total"),
    *("passage_cache_bytes", "passage_cache_max_bytes"),
)


class Load:
    """The requests of all clients, by the number of the client and of its request.

    Args:
        arguments: `passages`, `words`, `documents` and `seed` of the command.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.texts = passages(arguments.passages, arguments.words)
        self.words = " ".join(self.texts[:20]).split()
        weights = 1 / np.arange(1, len(self.texts) + 1)
        self.shares, self.documents, self.seed = weights / weights.sum(), arguments.documents, arguments.seed

    def request(self, client: int, count: int) -> dict:
        """Return the body of a request."""
        draw = np.random.default_rng((self.seed, client, count))
        chosen = draw.choice(len(self.texts), self.documents, replace=False, p=self.shares)
        question = f"Which text is about {' '.join(draw.choice(self.words, 8))}?"
        return {"query": question, "documents": [self.texts[i] for i in chosen]}

    def all_texts(self) -> list[dict]:
        """Return the bodies of requests that read every passage once."""
        lists = [self.texts[i : i + self.documents] for i in range(0, len(self.texts), self.documents)]
        return [{"query": "Which text is it?", "documents": texts} for texts in lists]


class Clients:
    """Clients of one server that each wait for an answer before the next request.

    Args:
        url: of the server.
        load: what they send.
        count: number of clients.

    Attributes:
        answers: relevances in the order of the documents, by client and request.
    """

    def __init__(self, url: str, load: Load, count: int) -> None:
        self.url, self.load, self.count = url, load, count
        self.answers: dict[tuple[int, int], list[float]] = {}
        self.sent = [0] * count

    def run(self, seconds: float) -> dict[str, float]:
        """Send requests for some seconds, and return how many were answered, and how fast."""
        end, times, failures = time.monotonic() + seconds, [], []

        def client(number: int) -> None:
            with httpx.Client(base_url=self.url, timeout=600) as http:
                while time.monotonic() < end and not failures:
                    body, began = self.load.request(number, self.sent[number]), time.perf_counter()
                    try:
                        reply = http.post("/v1/rerank", json=body).raise_for_status().json()
                    except httpx.HTTPError as error:
                        failures.append(repr(error))
                        return
                    times.append(time.perf_counter() - began)
                    ordered = sorted(reply["results"], key=lambda row: row["index"])
                    self.answers[number, self.sent[number]] = [row["relevance_score"] for row in ordered]
                    self.sent[number] += 1

        began, before = time.monotonic(), metrics(self.url)
        threads = [threading.Thread(target=client, args=(number,)) for number in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise SystemExit(failures[0])
        took, after = time.monotonic() - began, metrics(self.url)
        counted = {name: after[name] - before[name] for name in METRICS if name.endswith("_total")}
        return {
            "answers": len(times),
            "answers_per_second": round(len(times) / took, 4),
            "p50": round(float(np.quantile(times, 0.5)), 3),
            "p95": round(float(np.quantile(times, 0.95)), 3),
            **{name: after[name] for name in METRICS} | counted,
        }


def metrics(url: str) -> dict[str, float]:
    """Return the server's counts."""
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    found = {line.split()[0]: float(line.split()[1]) for line in lines if line[:1] != "#" and "{" not in line}
    return {name: found[f"fastreader_{name}"] for name in METRICS}


def resident(process: subprocess.Popen) -> int:
    """Return the resident memory of a process, in bytes."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def processor_seconds(process: subprocess.Popen) -> float:
    """Return the processor time of a process so far, which other processes change less than the clock's."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare(arguments: argparse.Namespace) -> tuple[list[dict], list[str]]:
    """Return rows of both servers and their ratios, and what is under the bar."""
    load, rows, answers = Load(arguments), [], []
    limit = ROOM_MB if arguments.cache_mb is None else arguments.cache_mb
    for kept, options in ((False, ["--no-passage-cache"]), (True, ["--passage-cache-mb", str(limit)])):
        with serving(arguments.model, *options) as (url, process):
            clients = Clients(url, load, arguments.clients)
            for phase in ("first", "known") if kept else ("without",):
                for body in load.all_texts() if phase == "known" else ():
                    httpx.post(f"{url}/v1/rerank", json=body, timeout=600).raise_for_status()
                before = processor_seconds(process)
                row = clients.run(arguments.seconds)
                row["processor_seconds"] = round(processor_seconds(process) - before, 2)
                rows.append({"phase": phase, **row})
                print(json.dumps(rows[-1]), flush=True)
            answers.append(clients.answers)
    shared = answers[0].keys() & answers[1].keys()
    apart = max((float(np.abs(np.subtract(answers[0][key], answers[1][key])).max()) for key in shared), default=0.0)
    plain, first, known = (row["answers_per_second"] for row in rows)
    verdict = {"first_ratio": round(first / plain, 2), "known_ratio": round(known / plain, 2)}
    verdict |= {"compared": len(shared), "apart": apart}
    failed = [f"{known / plain:.2f} times the answers a second"] if known < BAR * plain else []
    if not shared or apart > TOLERANCE:
        failed.append(f"{len(shared)} equal requests differ by up to {apart:.1e}")
    return [*rows, verdict], failed


def soak(arguments: argparse.Namespace) -> tuple[list[dict], list[str]]:
    """Return what memory did while the clients sent requests, and what is over the bar."""
    load, samples, done = Load(arguments), [], threading.Event()
    limit = SOAK_MB if arguments.cache_mb is None else arguments.cache_mb
    with serving(arguments.model, "--passage-cache-mb", str(limit)) as (url, process):

        def watch() -> None:
            began = time.monotonic()
            while not done.wait(EVERY):
                row = {"second": round(time.monotonic() - began, 1), "resident": resident(process), **metrics(url)}
                samples.append(row)
                print(json.dumps(row), flush=True)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            row = Clients(url, load, arguments.clients).run(arguments.soak)
        finally:
            done.set()
            watcher.join()
    late = [sample for sample in samples if sample["second"] > WARM_UP * arguments.soak]
    if len(late) < 3:
        raise SystemExit(f"--soak: expected seconds for at least three samples after the warm-up, got {arguments.soak}")
    seconds, held = (np.array([sample[name] for sample in late]) for name in ("second", "resident"))
    slope = float(np.polyfit(seconds, held, 1)[0])
    growth = slope * float(np.ptp(seconds)) / float(held[0])
    verdict = {**row, "soak": arguments.soak, "bytes_per_second": round(slope), "growth": round(growth, 5)}
    verdict["most_bytes"] = max(sample["passage_cache_bytes"] for sample in samples)
    failed = [f"memory grew by {growth:.2%}"] if growth > GROWTH else []
    if verdict["most_bytes"] > row["passage_cache_max_bytes"]:
        failed.append(f"the cache held {verdict['most_bytes']:,.0f} bytes")
    if not row["passage_cache_evictions_total"]:
        failed.append("no entry left the cache")
    return [*samples, verdict], failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--passages", type=int, default=500)
    parser.add_argument("--words", type=int, default=100)
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache-mb", type=float, help=f"{ROOM_MB:g} by default, {SOAK_MB:g} with --soak")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="watch memory for this long instead")
    parser.add_argument("--output", type=Path, help="results are appended here")
    arguments = parser.parse_args()
    rows, failed = (compare if arguments.soak is None else soak)(arguments)
    given = {name: value for name, value in vars(arguments).items() if name != "output"}
    print(json.dumps(rows[-1]), flush=True)
    if arguments.output:
        with arguments.output.open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps({**given, **row, **machine.describe()}) + "\n" for row in rows)
    if failed:
        sys.exit("not held: " + "; ".join(failed))


if __name__ == "__main__":
    main()
