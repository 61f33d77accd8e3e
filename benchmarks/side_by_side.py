"""Measure seconds, peak memory and error of a packed pass and of other ways to the same log-likelihoods.

Every way runs in a separate process, alternating, for several rounds, so that all see the same machine and each has
its own peak. The rate of a plain matrix product is measured before and after: when it fell by more than a
quarter, something else was running and the run is marked as loaded. A pass is held against the fastest product of the
machine that keeps its precision's promise, in its own process, the faster of just before and just after it. On a GPU
every way runs once before it is timed.

    python benchmarks/side_by_side.py                      workload W1, all usual ways
    python benchmarks/side_by_side.py --workload w2 w3     others (see workloads.py)
    python benchmarks/side_by_side.py --plot times.svg     a picture of the last run of each workload

vLLM, llama.cpp and OpenVINO GenAI are peers on request, in separate environments: name their ways by --ways and
their interpreters by --vllm-python, --llamacpp-python and --openvino-python. Without, the error says how to make one.
OpenVINO GenAI gives no log-likelihoods: it reads the contexts alone, and its next tokens are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apart
import gguf_file
import machine
import peers
import torch
import work
import workloads
from peak import Peak

RESULTS = Path(__file__).parent / "results"
WAYS = {
    "fastreader, fast": ("tree", "fast"),
    "fastreader, high": ("tree", "high"),
    "fastreader, exact": ("tree", "exact"),
    "fastreader, fast by bf16": ("tree", "fast:bf16"),
    "fastreader, fast by float32": ("tree", "fast:float32"),
    "fastreader, fast by int16": ("tree", "fast:int16"),
    "fastreader, fast, bf16 weights": ("tree", "fast::bfloat16"),
    "fastreader, fast by bf16, bf16 weights": ("tree", "fast:bf16:bfloat16"),
    "transformers, prefix cache, bf16": ("prefix_cached", "bf16"),
    "transformers, padded by 8, bf16": ("padded", "bf16"),
    "lm-eval HFLM, bf16": ("harness", "bf16"),
    "vLLM, prompt_logprobs, bf16": ("vllm", "bf16"),
    "transformers, prefix cache, fp32": ("prefix_cached", "fp32"),
    "transformers, padded by 8, fp32": ("padded", "fp32"),
    "llama.cpp, prefix cache, Q4_1": ("llamacpp", "Q4_1"),
    "llama.cpp, prefix cache, Q8_0": ("llamacpp", "Q8_0"),
    "llama.cpp, prefix cache, BF16": ("llamacpp", "BF16"),
    "OpenVINO GenAI, prefill only, f32": ("openvino", "f32"),
    "OpenVINO GenAI, prefill only, int8": ("openvino", "int8"),
}
USUAL = [w for w, (kind, how) in WAYS.items() if ":" not in how and kind not in ("harness", *apart.PEERS)]
TRUTH = ("one_at_a_time", "fp32")
TRUE_TOKENS = ("first_tokens", "fp32")
MOST_ERROR = 1.0  # nats, the median; 8-bit activations are off by 0.3 to 0.5, other tokens would be by tens
FEWEST_TOKENS = 0.5  # of the first new tokens like the truth's
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


KEPT = ("given", "computed", "flops", "estimated_bytes", "products", "versions")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--workload", nargs="+", default=["w1"], choices=workloads.NAMES)
    parser.add_argument("--tokens", type=Path, help="W1 as token ids; the bundled text by default")
    parser.add_argument("--device", default="cpu", help="cpu or cuda[:n]")
    parser.add_argument("--share", type=float, default=1.0, help="of the workload's size, for a quick look")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=USUAL, choices=list(WAYS), metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--no-error", action="store_true", help="skip the truth, one sequence at a time in fp32")
    for peer in apart.PEERS:
        what = f"interpreter of an environment with {apart.PEERS[peer].title}"
        parser.add_argument(f"--{peer}-python", default="python", help=what)
    parser.add_argument("--gguf", nargs="+", type=Path, default=[], help="files for llama.cpp; else the packaged one")
    parser.add_argument("--openvino-model", type=Path, help="a GGUF file or an exported folder; else as --gguf's Q4_1")
    parser.add_argument("--output", type=Path, help="results are appended here; by default a file a kind of device")
    parser.add_argument("--plot", type=Path, help="draw the last run of each workload, and run nothing")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.output is None:
        kind = arguments.device.partition(":")[0]
        arguments.output = RESULTS / ("side_by_side.jsonl" if kind == "cpu" else f"side_by_side.{kind}.jsonl")
    if arguments.child:
        print(json.dumps(child(arguments, *arguments.child)))
    elif arguments.plot:
        plot(arguments.output, arguments.plot)
    else:
        try:
            prepare(arguments)
        except (ValueError, FileNotFoundError) as error:
            parser.error(str(error))
        for name in arguments.workload:
            run(arguments, name)


def prepare(arguments: argparse.Namespace) -> None:
    """Check that the peers in separate environments can run, before anything takes time.

    Raises:
        ValueError: if one cannot; the message says how to set it up.
        FileNotFoundError: if one lacks its model's file.
    """
    for kind, precision in (WAYS[way] for way in arguments.ways):
        if kind not in apart.PEERS:
            continue
        if arguments.device != "cpu":
            title = apart.PEERS[kind].title
            raise ValueError(f"{title} is run on the CPU here; leave it out of --ways with another --device")
        if said := apart.missing(kind, getattr(arguments, f"{kind}_python")):
            raise ValueError(said)
        if kind != "vllm":
            model_file(arguments, kind, precision)


def model_file(arguments: argparse.Namespace, kind: str, precision: str) -> Path:
    """What llama.cpp or OpenVINO GenAI reads."""
    if kind == "openvino" and arguments.openvino_model:
        path: Path = arguments.openvino_model
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file or folder")
        return path
    return gguf_file.find(arguments.model, precision if kind == "llamacpp" else "Q4_1", arguments.gguf)


def run(arguments: argparse.Namespace, name: str) -> None:
    before = {str(d): machine.gemm_rate(d, arguments.device) for d in DTYPES.values()}
    truth = None if arguments.no_error else spawn(arguments, name, TRUTH)["logprobs"]
    tokens = None
    if not arguments.no_error and any(WAYS[way][0] == "openvino" for way in arguments.ways):
        tokens = spawn(arguments, name, TRUE_TOKENS)["first_tokens"]
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in arguments.ways}
    for round_ in range(arguments.rounds):
        for way in list(runs):
            try:
                runs[way].append(spawn(arguments, name, WAYS[way]))
            except subprocess.CalledProcessError as error:
                print(f"{name}, {way}: {error}; left out", file=sys.stderr)
                del runs[way]
                continue
            print(f"{name}, round {round_ + 1}, {way}: {runs[way][-1]['seconds']:.3f} s", file=sys.stderr)
    after = {str(d): machine.gemm_rate(d, arguments.device) for d in DTYPES.values()}
    if not runs:
        raise SystemExit(f"{name}: no way ran")
    first = next(iter(runs.values()))[0]
    record = {
        "workload": first["workload"],
        "share": arguments.share,
        "time": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        "model": arguments.model,
        "machine": machine.describe(arguments.device),
        "gemm_flops": {"before": before, "after": after},
        "loaded": any(after[d] < 0.75 * before[d] for d in before),
        "rows": {way: summary(runs[way], truth, tokens) for way in runs},
    }
    arguments.output.parent.mkdir(exist_ok=True)
    with arguments.output.open("a") as stream:
        stream.write(json.dumps(record) + "\n")
    print(table(record))
    if failed := [way for way in arguments.ways if way not in runs]:
        raise SystemExit(f"{name}: {', '.join(failed)} failed")
    if apart_from := others(record["rows"]):
        raise SystemExit(f"{name}: {', '.join(apart_from)}: too far from the truth to have done the same work")


def others(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Peers in separate environments whose results say that they did other work."""
    found = []
    for way, row in rows.items():
        far = row.get("error_median", 0.0) > MOST_ERROR or row.get("first_tokens_like_truth", 1.0) < FEWEST_TOKENS
        if far and WAYS[way][0] in apart.PEERS:
            found.append(way)
    return found


def spawn(arguments: argparse.Namespace, name: str, way: tuple[str, str]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--model", arguments.model, "--share", str(arguments.share)]
    command += ["--device", arguments.device]
    for peer in apart.PEERS:
        command += [f"--{peer}-python", getattr(arguments, f"{peer}_python")]
    if arguments.tokens:
        command += ["--tokens", str(arguments.tokens)]
    if arguments.gguf:
        command += ["--gguf", *map(str, arguments.gguf)]
    if arguments.openvino_model:
        command += ["--openvino-model", str(arguments.openvino_model)]
    command += ["--child", name, *way]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def child(arguments: argparse.Namespace, name: str, way: str, precision: str) -> dict[str, Any]:
    """Load, then time one way once. The peak is what memory rose to above the loaded model."""
    from plain_folder import folder_of

    from fastreader.models.loading.packaged import PACKAGED

    folder = str(folder_of(arguments.model)) if arguments.model in PACKAGED else arguments.model
    facts: dict[str, Any] = {}
    if way == "tree":
        from fastreader import Reader

        precision, products, dtype = [*precision.split(":"), "", ""][:3]
        choices = {"precision": precision, "products": products or "auto", "dtype": dtype or "auto"}
        reader = Reader.load(arguments.model, device=arguments.device, **choices)
        workload = workloads.make(name, reader.encoder, arguments.tokens, arguments.share)
        trees = reader.plan(workload.sequences())
        longest = max(map(len, trees))
        facts = {
            "products": reader.arithmetic.products,
            "computed": sum(map(len, trees)),
            "flops": sum(work.flops(trees, reader.local_model.model.config).values()),
            "estimated_bytes": reader.local_model.model.bytes_per_token * longest
            + reader.local_model.model.overhead.bytes(longest),
        }

        def score() -> list[float]:
            return reader.score(workload.sequences()).logprob.tolist()
    else:
        import transformers

        from fastreader.reader.prompts.encoder import TextEncoder

        encoder = TextEncoder(transformers.AutoTokenizer.from_pretrained(folder))
        workload = workloads.make(name, encoder, arguments.tokens, arguments.share)
        if way in apart.PEERS:
            told = elsewhere(arguments, way, precision, folder, workload)
            return {**told, "workload": workload.name, "given": workload.given}
        if way == "harness":
            score = peers.harness(folder, DTYPES[precision], workload.groups, arguments.device)
        else:
            model = peers.plain_model(arguments.model, DTYPES[precision], arguments.device)
            if way == "first_tokens":
                return {"first_tokens": peers.first_tokens(model, workload.groups)}
            ask: Callable[..., list[float]] = getattr(peers, way)

            def score() -> list[float]:
                return ask(model, workload.groups)

        whole = sum(len(g.context) + sum(len(k) - 1 for k in g.continuations) for g in workload.groups)
        facts = {"computed": whole if way == "prefix_cached" else workload.given}
    if arguments.device != "cpu":
        score()  # kernels are compiled and loaded when first used
    promised = precision if way == "tree" else "fast"
    rates = [machine.product_rate(promised, arguments.device)]
    with Peak(arguments.device) as peak:
        started = time.perf_counter()
        logprobs = score()
        seconds = time.perf_counter() - started
    rates.append(machine.product_rate(promised, arguments.device))
    facts["gemm_flops"] = max(rates)
    result = {"workload": workload.name, "seconds": seconds, "peak_bytes": peak.bytes, "logprobs": logprobs}
    return {**result, "given": workload.given, **facts}


def elsewhere(
    arguments: argparse.Namespace, kind: str, precision: str, folder: str, workload: workloads.Workload
) -> dict[str, Any]:
    """Ask a peer in a separate environment."""
    python = getattr(arguments, f"{kind}_python")
    if kind == "vllm":
        return apart.vllm(python, folder, workload)
    path = model_file(arguments, kind, precision)
    if kind == "llamacpp":
        return apart.llamacpp(python, path, workload)
    return apart.openvino(python, path, precision, workload)


def summary(
    runs: list[dict[str, Any]], truth: list[float] | None, true_tokens: list[int] | None = None
) -> dict[str, Any]:
    seconds = [r["seconds"] for r in runs]
    row = {
        "seconds": statistics.median(seconds),
        "seconds_all": seconds,
        "peak_bytes": max((r["peak_bytes"] for r in runs if r["peak_bytes"] is not None), default=None),
        **{k: runs[0][k] for k in KEPT if k in runs[0]},
    }
    if "flops" in row:
        row["gemm_shares"] = [row["flops"] / r["seconds"] / r["gemm_flops"] for r in runs]
        row["gemm_share"] = statistics.median(row["gemm_shares"])
    if true_tokens is not None and "first_tokens" in runs[0]:
        pairs = list(zip(runs[0]["first_tokens"], true_tokens, strict=True))
        row["first_tokens_like_truth"] = sum(a == b for a, b in pairs) / len(pairs)
    if truth is not None and runs[0]["logprobs"] is not None:
        errors = sorted(abs(a - b) for a, b in zip(runs[0]["logprobs"], truth, strict=True))
        row |= {
            "error_mean": statistics.mean(errors),
            "error_median": statistics.median(errors),
            "error_max": errors[-1],
        }
        row["error_p95"] = errors[min(len(errors) - 1, int(0.95 * len(errors)))]
    return row


def table(record: dict[str, Any]) -> str:
    ours = next(iter(record["rows"].values()))["seconds"]
    lines = ["| way | seconds (min .. max) | times the first | peak above weights | tokens | error mean / max (nats) |"]
    lines.append("|-|-|-|-|-|-|")
    digits = ".2f" if ours > 1 else ".3f"
    for way, row in record["rows"].items():
        spread = f"{min(row['seconds_all']):{digits}} .. {max(row['seconds_all']):{digits}}"
        error = f"{row['error_mean']:.4f} / {row['error_max']:.4f}" if "error_mean" in row else "-"
        if "first_tokens_like_truth" in row:
            error = f"next tokens {row['first_tokens_like_truth']:.0%} alike"
        peak = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:,.0f} MB"
        lines.append(
            f"| {way} | {row['seconds']:{digits}} ({spread}) | {row['seconds'] / ours:.1f} "
            f"| {peak} | {row['computed']:,} | {error} |"
        )
    note = " **The machine was loaded: do not quote these times.**" if record["loaded"] else ""
    rates = ", ".join(
        f"{way.split(', ')[1]} ({row['products']}) {row['gemm_share']:.2f}"
        for way, row in record["rows"].items()
        if "gemm_share" in row
    )
    share = f" Useful operations against the fastest product measured: {rates}." if rates else ""
    return "\n".join(lines) + f"\n\n{record['workload']}, {record['machine']['processor']}.{share}{note}"


def plot(results: Path, path: Path) -> None:
    """Seconds of each way, a panel a workload, the last run of each."""
    from matplotlib.figure import Figure

    last = {record["workload"]: record for record in map(json.loads, results.read_text().splitlines())}
    figure = Figure(figsize=(7, 2.2 * len(last)), layout="constrained")
    for axes, record in zip(figure.subplots(len(last), squeeze=False)[:, 0], last.values(), strict=True):
        names = list(record["rows"])[::-1]
        seconds = [record["rows"][n]["seconds"] for n in names]
        low = [s - min(record["rows"][n]["seconds_all"]) for n, s in zip(names, seconds, strict=True)]
        high = [max(record["rows"][n]["seconds_all"]) - s for n, s in zip(names, seconds, strict=True)]
        axes.barh(
            names, seconds, xerr=[low, high], color=["#1b6ca8" if "fastreader" in n else "#b9c4cc" for n in names]
        )
        axes.set_title(f"{record['workload']}{' (loaded machine)' if record['loaded'] else ''}", loc="left")
        axes.set_xlabel("seconds")
    figure.savefig(path)


if __name__ == "__main__":
    main()
