"""Error of each precision, in nats, over real questions: ours and transformers' bfloat16, against float32.

For each question: N passages in cyclic orders, its answer and other questions' as candidates; a few orders are drawn.
Transformers reads each order alone, in float32 as the truth and in bfloat16 as people run it, with a cache for the
candidates; the first questions also one sequence at a time in float64, which says how far that truth is off. Results
are appended, so a stopped run continues. vLLM reads the first questions in a separate environment (peer_vllm.py) and
goes into a second file next to the first.

    python benchmarks/accuracy.py questions.jsonl.gz --output accuracy.jsonl
    python benchmarks/accuracy.py questions.jsonl.gz --output accuracy.jsonl --vllm-python THAT/bin/python
    python benchmarks/accuracy.py questions.jsonl.gz --output accuracy.file.jsonl --dtype file
    python benchmarks/accuracy.py --report accuracy.jsonl
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import peers
import torch
from groups import Group
from plain_folder import folder_of
from scipy.stats import kendalltau
from workloads import Workload

from fastreader import Example, Reader, Template, load_examples
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.models.loading.packaged import PACKAGED
from fastreader.models.machine.arithmetic import ways
from fastreader.permutations import cyclic
from fastreader.reader.prompts.pieces import encode

PRODUCTS = {  # by precision; those that this machine lacks are left out
    "fast by bf16": ("fast", "bf16"),
    "fast by int16": ("fast", "int16"),
    "fast by float32": ("fast", "float32"),
    "high": ("high", "bf16x3"),
    "exact": ("exact", "float32"),
}
ROUNDED = "fast by bf16, bf16 weights"  # of a file, which --dtype file compares with its integers
ROUNDED_ALL = "transformers, bf16"
WAYS = [*PRODUCTS, ROUNDED, ROUNDED_ALL]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="questions with passages, in a format fastreader reads")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--report", type=Path, help="print the table of a run")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument(
        "--dtype", default="bfloat16", choices=["bfloat16", "file"], help="file: a GGUF's own values, also as the truth"
    )
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--passages", type=int, default=5)
    parser.add_argument("--candidates", type=int, default=4)
    parser.add_argument("--orders", type=int, default=5, help="orders of each question that are compared")
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS, metavar="WAY", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--float64", type=int, default=3, help="questions also run in float64")
    parser.add_argument("--vllm-python", help="only run vLLM, by this interpreter, on questions the output has")
    parser.add_argument("--vllm-questions", type=int, default=10)
    arguments = parser.parse_args()
    if arguments.report:
        print(report(rows_of(arguments.report)))
    elif arguments.data is None or arguments.output is None:
        parser.error("DATA and --output are needed, or --report")
    elif arguments.vllm_python:
        measure_vllm(arguments)
    else:
        measure(arguments)


def measure(arguments: argparse.Namespace) -> None:
    dtype = arguments.dtype
    readers = {
        name: Reader.load(arguments.model, device="cpu", dtype=dtype, precision=precision, products=products)
        for name, (precision, products) in PRODUCTS.items()
        if name in arguments.ways and products in ways()
    }
    if dtype == "file" and ROUNDED in arguments.ways:
        readers[ROUNDED] = Reader.load(arguments.model, device="cpu", dtype="bfloat16", products="bf16")
    if not readers:
        raise SystemExit("--ways: none of these ways of fastreader runs on this machine")
    narrow = peers.plain_model(arguments.model, torch.bfloat16) if ROUNDED_ALL in arguments.ways else None
    if dtype == "file":
        wide = peers.plain_model(arguments.model, torch.float32)
    else:
        wide = peers.plain_model(arguments.model, torch.bfloat16).float()
    examples = load_examples(arguments.data)
    with ResultLog(arguments.output, settings=settings_of(arguments), resume=arguments.output.exists()) as log:
        for i in range(arguments.questions):
            if str(i) in log:
                continue
            groups, kinds = drawn(arguments, next(iter(readers.values())), examples, i)
            sequences = [pair for group in groups for pair in group.sequences()]
            values = {f"fastreader, {n}": r.score(sequences).logprob.tolist() for n, r in readers.items()}
            if narrow is not None:
                values[ROUNDED_ALL] = peers.prefix_cached(narrow, groups)
            values["float32"] = peers.prefix_cached(wide, groups)
            if i < arguments.float64:
                values["float64"] = alone(wide.double(), sequences)
                wide.float()
            log.append(str(i), {"kinds": kinds, "values": values})
            print(f"{i + 1} of {arguments.questions}", file=sys.stderr)


def measure_vllm(arguments: argparse.Namespace) -> None:
    from apart import vllm

    reader = Reader.load(arguments.model, device="cpu")
    folder = folder_of(arguments.model) if arguments.model in PACKAGED else arguments.model
    examples = load_examples(arguments.data)
    wanted = sorted(int(row["id"]) for row in iter_results(arguments.output))[: arguments.vllm_questions]
    beside = beside_of(arguments.output)
    with ResultLog(beside, settings=settings_of(arguments), resume=beside.exists()) as log:
        left = [i for i in wanted if str(i) not in log]
        if not left:
            return
        groups = {i: drawn(arguments, reader, examples, i)[0] for i in left}
        every = Workload("accuracy", [group for i in left for group in groups[i]])
        values = iter(vllm(arguments.vllm_python, str(folder), every)["logprobs"])
        for i in left:
            log.append(str(i), {"values": [next(values) for group in groups[i] for _ in group.sequences()]})


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the rows depend on."""
    apart = ["output", "data", "report", "questions", "vllm_python", "vllm_questions"]
    apart += ["dtype"] if arguments.dtype == "bfloat16" else []  # older rows do not name these two
    apart += ["ways"] if arguments.ways == WAYS else []
    return {k: v for k, v in vars(arguments).items() if k not in apart}


def beside_of(output: Path) -> Path:
    """Where vLLM's values are."""
    return output.with_suffix(".vllm.jsonl")


def rows_of(output: Path) -> list[dict[str, Any]]:
    """The rows of a run, vLLM's values among the others where there are any."""
    rows = list(iter_results(output))
    if beside_of(output).exists():
        more = {row["id"]: row["values"] for row in iter_results(beside_of(output))}
        for row in rows:
            if row["id"] in more:
                row["values"]["vLLM, bf16"] = more[row["id"]]
    return rows


def drawn(
    arguments: argparse.Namespace, reader: Reader, examples: Sequence[Example], i: int
) -> tuple[list[Group], list[str]]:
    """The requests of question i, with candidates and orders drawn for it."""
    generator = random.Random(i)
    others = generator.sample([e.answers[0] for j, e in enumerate(examples) if j != i], arguments.candidates - 1)
    passages = examples[i].passages[: arguments.passages]
    example = Example(examples[i].question, passages, candidates=[examples[i].answers[0], *others])
    orders = sorted(generator.sample(range(len(passages)), min(arguments.orders, len(passages))))
    return requests(reader, example, orders)


def requests(reader: Reader, example: Example, orders: list[int]) -> tuple[list[Group], list[str]]:
    """Each order's candidates and its question (to where the answer starts), and which of the two each sequence is."""
    pieces = encode(reader.encoder, Template(), example.question, example.passages, example.candidates)
    groups, kinds = [], []
    everyone = cyclic(len(example.passages)).permutations.tolist()
    for order in (everyone[o] for o in orders):
        before = pieces.head + pieces.body(order) + pieces.question_lead
        groups.append(Group(before + pieces.question + pieces.answer, pieces.candidates, scored_from=len(before)))
        kinds += ["candidate"] * len(pieces.candidates) + ["question"]
    return groups, kinds


@torch.inference_mode()
def alone(model: Any, sequences: list[tuple[list[int], list[int]]]) -> list[float]:
    out = []
    for context, continuation in sequences:
        ids = torch.tensor([context + continuation])
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(continuation) + 1).logits[0, :-1]
        wide = logits if logits.dtype == torch.float64 else logits.float()
        out.append(float(wide.log_softmax(-1).gather(1, torch.tensor(continuation)[:, None]).sum()))
    return out


def report(rows: list[dict[str, Any]]) -> str:
    """Mean, 95th percentile and maximum of the absolute error. Kendall's tau of orders by the question."""
    count = sum(len(row["kinds"]) for row in rows)
    lines = [
        f"{len(rows)} questions, {count} sequences, against float32 with each order read alone (nats).",
        "",
        "| way | questions | candidates: mean | 95% | max | questions: mean | 95% | max | Kendall tau |",
        "|-|-|-|-|-|-|-|-|-|",
    ]
    ways = dict.fromkeys(w for row in rows for w in row["values"] if not w.startswith("float"))
    for way in ways:
        some = [row for row in rows if way in row["values"]]
        kinds = np.array([k for row in some for k in row["kinds"]])
        error = np.abs(
            np.array([v for row in some for v in row["values"][way]])
            - np.array([v for row in some for v in row["values"]["float32"]])
        )
        cells = []
        for kind in ("candidate", "question"):
            e = error[kinds == kind]
            cells += [f"{e.mean():.4f}", f"{np.quantile(e, 0.95):.4f}", f"{e.max():.4f}"]
        taus = [_tau(row, way) for row in some]
        tau = "-" if np.isnan(taus).all() else f"{np.nanmean(taus):.3f}"  # none of single orders
        lines.append(f"| {way} | {len(some)} | {' | '.join(cells)} | {tau} |")
    checked = [row for row in rows if "float64" in row["values"]]
    if checked:
        off = [abs(a - b) for r in checked for a, b in zip(r["values"]["float32"], r["values"]["float64"], strict=True)]
        lines += ["", f"float32 against float64 over {len(checked)} questions: largest difference {max(off):.1e} nats."]
    return "\n".join(lines)


def _tau(row: dict[str, Any], way: str) -> float:
    asked = [i for i, kind in enumerate(row["kinds"]) if kind == "question"]
    if len(asked) < 2:
        return float("nan")
    got, want = ([row["values"][name][i] for i in asked] for name in (way, "float32"))
    return float(kendalltau(got, want).statistic)


if __name__ == "__main__":
    main()
