"""Measure seconds and peak memory of generating after many prompts, compared with transformers' two usual ways.

Three workloads, each greedy and to the full length (the end of text is taken from every model):

64x1   64 continuations of one prompt of 1,500 tokens
10x1   one continuation of each of 10 orderings of 10 passages
4x1    4 conditional summaries: prompts that share 10 passages and differ at their ends

Every way runs in a separate process, alternating, for several rounds, so that all see the same machine. The rate of a
plain matrix product is measured before and after: when it fell by more than a quarter, something else was running
and the run is marked as loaded. On a GPU every way runs once before it is timed.

    python benchmarks/generation.py                                        all workloads, 128 new tokens
    python benchmarks/generation.py --workload 64x1 --prompt 60 --rows 4 --new 4 --rounds 1    to see it work
    python benchmarks/generation.py --workload 64x1 --rows 16 --steps                         milliseconds a step, too

llama.cpp is a peer on request, in a separate environment: --ways ... "llama.cpp, Q4_1" --llamacpp-python PYTHON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apart
import gguf_file
import machine
import peers
import torch
import workloads
import writers
from peak import Peak

RESULTS = Path(__file__).parent / "results" / "generation.jsonl"
WAYS = {
    "fastreader, fast": ("tree", "fast"),
    "transformers, prefix cache, bf16": ("prefix_cached", "bf16"),
    "transformers, padded, bf16": ("padded", "bf16"),
    "fastreader, exact": ("tree", "exact"),
    "fastreader, fast, bf16 weights": ("tree", "fast:bfloat16"),
    "transformers, prefix cache, fp32": ("prefix_cached", "fp32"),
    "transformers, padded, fp32": ("padded", "fp32"),
    "llama.cpp, Q4_1": ("llamacpp", "Q4_1"),
    "llama.cpp, Q8_0": ("llamacpp", "Q8_0"),
    "llama.cpp, BF16": ("llamacpp", "BF16"),
}
USUAL = list(WAYS)[:3]
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
ROWS = {"64x1": 64, "10x1": 10, "4x1": 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="cpu", help="cpu or cuda[:n]")
    parser.add_argument("--workload", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--prompt", type=int, default=1500, help="tokens of 64x1's prompt, of others' at most")
    parser.add_argument("--rows", type=int, help="fewer rows than the workload has")
    parser.add_argument("--new", type=int, default=128, help="tokens written a row")
    parser.add_argument("--steps", action="store_true", help="time one new token too, for the milliseconds a step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=USUAL, choices=list(WAYS), metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--llamacpp-python", default="python", help="interpreter of an environment with llama.cpp")
    parser.add_argument("--gguf", nargs="+", type=Path, default=[], help="files for llama.cpp; else the packaged one")
    parser.add_argument("--output", type=Path, default=RESULTS, help="results are appended here")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(arguments, *arguments.child)))
        return
    try:
        prepare(arguments)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    for name in arguments.workload:
        record = run(arguments, name)
        arguments.output.parent.mkdir(exist_ok=True)
        with arguments.output.open("a") as stream:
            stream.write(json.dumps(record) + "\n")
        print(table(record), end="\n\n")


def prepare(arguments: argparse.Namespace) -> None:
    """Check that llama.cpp can run if its ways are named, before anything takes time.

    Raises:
        ValueError: if it cannot; the message says how to set it up.
        FileNotFoundError: if it lacks a file.
    """
    if arguments.steps and arguments.new < 2:
        raise ValueError("--steps needs at least two new tokens")
    for kind in (kind for name, kind in map(WAYS.__getitem__, arguments.ways) if name == "llamacpp"):
        if arguments.device != "cpu":
            raise ValueError("llama.cpp is run on the CPU here; leave it out of --ways with another --device")
        if said := apart.missing("llamacpp", arguments.llamacpp_python):
            raise ValueError(said)
        gguf_file.find(arguments.model, kind, arguments.gguf)


def run(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    before = {str(d): machine.gemm_rate(d, arguments.device) for d in DTYPES.values()}
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in arguments.ways}
    for round_ in range(arguments.rounds):
        for way in arguments.ways:
            runs[way].append(spawn(arguments, name, WAYS[way]))
            print(f"{name}, round {round_ + 1}, {way}: {runs[way][-1]['seconds']:.2f} s", file=sys.stderr)
    after = {str(d): machine.gemm_rate(d, arguments.device) for d in DTYPES.values()}
    first = runs[arguments.ways[0]][0]
    return {
        "workload": name,
        "prompts": first["prompts"],
        "new": arguments.new,
        "time": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        "model": arguments.model,
        "machine": machine.describe(arguments.device),
        "gemm_flops": {"before": before, "after": after},
        "loaded": any(after[d] < 0.75 * before[d] for d in before),
        "rows": {way: summary(runs[way], first["tokens"]) for way in runs},
    }


def spawn(arguments: argparse.Namespace, name: str, way: tuple[str, str]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--model", arguments.model, "--new", str(arguments.new)]
    command += ["--device", arguments.device, "--prompt", str(arguments.prompt), "--child", name, *way]
    options = ["--llamacpp-python", arguments.llamacpp_python]
    if arguments.rows:
        options += ["--rows", str(arguments.rows)]
    if arguments.steps:
        options += ["--steps"]
    if arguments.gguf:
        options += ["--gguf", *map(str, arguments.gguf)]
    command[-4:-4] = options
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def child(arguments: argparse.Namespace, name: str, way: str, precision: str) -> dict[str, Any]:
    """Load, then time one way once. The peak is what memory rose to above the loaded model."""
    import transformers
    from plain_folder import folder_of

    from fastreader import Reader
    from fastreader.models.loading.packaged import PACKAGED
    from fastreader.reader.prompts.encoder import TextEncoder

    folder = str(folder_of(arguments.model)) if arguments.model in PACKAGED else arguments.model
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompts = make(name, TextEncoder(tokenizer), arguments.prompt, arguments.rows)
    if way == "llamacpp":
        file = gguf_file.find(arguments.model, precision, arguments.gguf)
        told = apart.llamacpp_writes(arguments.llamacpp_python, file, prompts, arguments.new)
        return {**told, "prompts": [len(prompt) for prompt in prompts]}
    precision, _, dtype = precision.partition(":")
    facts: dict[str, Any] = {}
    if way == "tree":
        reader = Reader.load(arguments.model, device=arguments.device, dtype=dtype or "auto", precision=precision)
        writers.endless(reader.model, reader.tokenizer)

        def write(new: int) -> list[list[int]]:
            results = reader.generate(prompts, max_new_tokens=new)
            facts["computed"] = results.stats.computed_tokens
            return [text.token_ids for (text,) in results]
    else:
        model = peers.plain_model(arguments.model, DTYPES[precision], arguments.device)
        writers.endless(model, tokenizer)
        ask = getattr(writers, way)
        ask(model, [prompts[0][:4]], 2)  # weights come from the disk when first used; our reader was probed already

        def write(new: int) -> list[list[int]]:
            rows: list[list[int]] = ask(model, prompts, new)
            return rows

    if arguments.device != "cpu":
        write(arguments.new)  # kernels are compiled and loaded when first used
    with Peak(arguments.device) as peak:
        started = time.perf_counter()
        rows = write(arguments.new)
        seconds = time.perf_counter() - started
    computed = dict(facts)
    if arguments.steps:
        started = time.perf_counter()
        write(1)
        computed["first_seconds"] = time.perf_counter() - started
    assert all(len(row) == arguments.new for row in rows), "a row ended early"
    lengths = [len(prompt) for prompt in prompts]
    return {"seconds": seconds, "peak_bytes": peak.bytes, "tokens": rows, "prompts": lengths, **computed}


def make(name: str, encoder: Any, longest: int, rows: int | None) -> list[list[int]]:
    """The prompts of a workload."""
    count = min(rows or ROWS[name], ROWS[name])
    groups = workloads.orders(encoder, 10, 4).groups
    if name == "64x1":
        stream = [token for group in groups for token in group.context]
        return [stream[:longest]] * count
    if name == "10x1":
        return [group.context[:longest] for group in groups[:count]]
    passages = groups[0].context[:longest]
    tasks = (
        f"\n\nSummarise what the passages say for the answer ({letter}) in a few sentences.\nSummary:"
        for letter in "abcd"[:count]
    )
    return [passages + encoder.piece(task) for task in tasks]


def summary(runs: list[dict[str, Any]], reference: list[list[int]]) -> dict[str, Any]:
    seconds = [r["seconds"] for r in runs]
    pairs = [
        (a, b)
        for mine, other in zip(runs[0]["tokens"], reference, strict=True)
        for a, b in zip(mine, other, strict=True)
    ]
    return {
        "seconds": statistics.median(seconds),
        "seconds_all": seconds,
        "peak_bytes": max(r["peak_bytes"] for r in runs),
        "new_tokens_per_second": len(pairs) / statistics.median(seconds),
        "tokens_like_first": sum(a == b for a, b in pairs) / len(pairs),
        **{k: runs[0][k] for k in ("computed", "versions") if k in runs[0]},
        **({"step_ms": statistics.median(map(step_ms, runs))} if can_step(runs) else {}),
    }


def can_step(runs: list[dict[str, Any]]) -> bool:
    return all("first_seconds" in told and len(told["tokens"][0]) > 1 for told in runs)


def step_ms(told: dict[str, Any]) -> float:
    """Milliseconds a step that writes one token of each text, after the first."""
    return float(1000 * (told["seconds"] - told["first_seconds"]) / (len(told["tokens"][0]) - 1))


def table(record: dict[str, Any]) -> str:
    ours = next(iter(record["rows"].values()))["seconds"]
    steps = any("step_ms" in row for row in record["rows"].values())
    heads = ["way", "seconds (min .. max)", "times the first", "new tokens a second", "peak above weights"]
    heads += ["ms a step"] * steps
    lines = [f"| {' | '.join(heads)} |", "|-" * len(heads) + "|"]
    for way, row in record["rows"].items():
        spread = f"{min(row['seconds_all']):.2f} .. {max(row['seconds_all']):.2f}"
        step = (f" {row['step_ms']:.1f} |" if "step_ms" in row else " - |") if steps else ""
        lines.append(
            f"| {way} | {row['seconds']:.2f} ({spread}) | {row['seconds'] / ours:.1f} "
            f"| {row['new_tokens_per_second']:.0f} | {row['peak_bytes'] / 1e6:,.0f} MB |{step}"
        )
    lengths = record["prompts"]
    size = f"{min(lengths):,}" if len(set(lengths)) == 1 else f"{min(lengths):,} to {max(lengths):,}"
    note = " **The machine was loaded: do not quote these times.**" if record["loaded"] else ""
    what = f"{record['workload']}: {len(lengths)} prompts of {size} tokens, {record['new']} new tokens each"
    return "\n".join(lines) + f"\n\n{what}, {record['machine']['processor']}.{note}"


if __name__ == "__main__":
    main()
