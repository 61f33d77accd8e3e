"""Compare stages 2 to 4 of SuRe with the same prompts sent one by one through transformers, without a cache.

The prompts are the ones SuRe makes for the questions with the reader in float32. Every way then runs them in a separate
process, alternating, for several rounds. For transformers, each label is a separate call. With "no cache at all" the
keys and values are not even kept from one new token to the next. That takes minutes a question, so it has fewer
questions and rounds, and is compared on these questions. The bars are at the end, each with pass or FAIL.

    python benchmarks/sure_cost.py DATA                              all ways
    python benchmarks/sure_cost.py --questions 1 --passages 2 --max-summary-tokens 4 --rounds 1    to see it work
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import machine
import torch
import workloads
from sure_cost_ways import SAME_TYPE, STAGES, UNCACHED, WAYS, child

from fastreader import Passage, Reader, load_examples, sure
from fastreader.reader.programs.checkpoint import Answered

RESULTS = Path(__file__).parent / "results" / "sure_cost.jsonl"
SHARE, FASTER = 0.55, 2.0  # bars: prompt tokens of stages 2 to 4 computed at most; times faster at least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="questions with passages; a bundled one by default")
    parser.add_argument("--questions", type=int, default=5)
    parser.add_argument("--passages", type=int, default=10)
    parser.add_argument("--k", type=int, default=2)
    parser.add_argument("--max-summary-tokens", type=int, default=128)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--uncached-questions", type=int, default=1, help="for the ways without any cache")
    parser.add_argument("--uncached-rounds", type=int, default=1)
    parser.add_argument(
        "--ways", nargs="+", default=list(WAYS), choices=list(WAYS), metavar="WAY", help="; ".join(WAYS)
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="results are appended here")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        way, precision, file = arguments.child
        print(json.dumps(child(arguments.model, json.loads(Path(file).read_text()), way, precision)))
        return
    work = prepare(arguments)
    before = machine.gemm_rate(torch.float32)
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in arguments.ways}
    for round_ in range(arguments.rounds):
        for way in arguments.ways:
            if way in UNCACHED and round_ >= arguments.uncached_rounds:
                continue
            asked = work[: arguments.uncached_questions] if way in UNCACHED else work
            runs[way].append(spawn(arguments.model, asked, way))
            print(f"round {round_ + 1}, {way}: {total(runs[way][-1]):.2f} s", file=sys.stderr)
    after = machine.gemm_rate(torch.float32)
    record = {
        "time": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        "model": arguments.model,
        "machine": machine.describe(),
        "k": arguments.k,
        "passages": arguments.passages,
        "max_summary_tokens": arguments.max_summary_tokens,
        "loaded": after < 0.75 * before,
        "tokens": tokens(work),
        "rows": {way: summary(runs[way], work) for way in runs},
    }
    record["bars"] = bars(record, runs)
    arguments.output.parent.mkdir(exist_ok=True)
    with arguments.output.open("a") as stream:
        stream.write(json.dumps(record) + "\n")
    print(table(record))


def spawn(model: str, work: list[dict[str, Any]], way: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "work.json"
        file.write_text(json.dumps(work))
        command = [sys.executable, __file__, "--model", model, "--child", *WAYS[way], str(file)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


class Recorder:
    """A checkpoint that only records the requests and replies of each question."""

    def __init__(self, questions: int) -> None:
        self.work: list[dict[str, Any]] = [{} for _ in range(questions)]

    def recall(self, index: int, step: int, request: Any) -> None:
        return None

    def record(self, answered: Iterable[Answered]) -> None:
        for index, _, request, replies, cost in answered:
            written = hasattr(request, "prompts")
            self.work[index][request.stage] = {
                "prompts": request.prompts if written else request.pairs,
                "max_new_tokens": request.max_new_tokens if written else 0,
                "stop": list(request.stop) if written else [],
                "expected": [g.text for texts in replies for g in texts] if written else [r.logprob for r in replies],
                "given": cost.total_tokens - cost.new_tokens,
                "computed": cost.computed_tokens - cost.new_tokens,
                "new": cost.new_tokens,
            }


def prepare(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The requests of stages 2 to 4 as token ids.

    The candidates are the question's own, or else its answer and other questions', so that every question has K.
    """
    from fastreader.reader.programs.readers import Readers
    from fastreader.reader.programs.scheduler import run
    from fastreader.sure.program import judge, summarise
    from fastreader.sure.replies import CandidateReply
    from fastreader.sure.task import Task

    examples = load_examples(arguments.data or workloads.BUNDLED)
    pool: list[Passage] = [] if arguments.data else [p for e in examples for p in e.passages]
    readers = Readers(Reader.load(arguments.model, precision="exact"))
    settings = sure.Settings(k=arguments.k, max_summary_tokens=arguments.max_summary_tokens)

    def program(task: Task, candidates: list[str]) -> Any:
        summaries = yield from summarise(task, candidates)
        result = yield from judge(task, CandidateReply(candidates, "", "letters"), summaries)
        return result

    programs = []
    for i, example in enumerate(examples[: arguments.questions]):
        others = [e.answers[0] for e in examples[i + 1 :] + examples[:i]]
        candidates = list(dict.fromkeys([*example.candidates, *example.answers[:1], *others]))[: arguments.k]
        passages = (pool or example.passages)[: arguments.passages]
        programs.append((program(Task(example.question, passages, settings, readers), candidates), readers))
    recorder = Recorder(len(programs))
    for outcome in run(programs, recorder):
        if outcome.error is not None:
            raise outcome.error
    return recorder.work


def total(run: dict[str, Any], questions: int | None = None) -> float:
    """Seconds of a run's first questions."""
    return sum(sum(took.values()) for took in run["seconds"][:questions])


def tokens(work: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Prompt tokens given and computed by stage, of all questions."""
    return {stage: [sum(q[stage][kind] for q in work) for kind in ("given", "computed")] for stage in STAGES}


def summary(runs: list[dict[str, Any]], work: list[dict[str, Any]]) -> dict[str, Any]:
    questions = len(runs[0]["seconds"])
    pairs = list(zip(runs[0]["replies"], work, strict=False))
    texts = [a.strip() == b.strip() for told, q in pairs for a, b in both(told, q, "summaries")]
    errors = [abs(a - b) for told, q in pairs for stage in STAGES[1:] for a, b in both(told, q, stage)]
    return {
        "questions": questions,
        "seconds_all": [total(run) for run in runs],
        "by_stage": {s: statistics.median(sum(q[s] for q in run["seconds"]) for run in runs) for s in STAGES},
        "same_texts": sum(texts),
        "texts": len(texts),
        "label_error_max": max(errors),
    }


def both(told: dict[str, list[Any]], question: dict[str, Any], stage: str) -> list[tuple[Any, Any]]:
    return list(zip(told[stage], question[stage]["expected"], strict=True))


def bars(record: dict[str, Any], runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return bars, measured values and verdicts: tokens, and our seconds against transformers' in the same dtype."""
    given, computed = (sum(part[i] for part in record["tokens"].values()) for i in (0, 1))
    second = record["tokens"]["summaries"][1] / record["tokens"]["summaries"][0]
    found = [
        bar("prompt tokens of stages 2 to 4 computed, share", computed / given, SHARE, most=True),
        bar("prompt tokens of stage 2 computed, share", second, 1 / record["k"] + 0.05, most=True),
    ]
    for ours in (way for way in runs if WAYS[way][0] == "fastreader"):
        for theirs in (way for way in runs if WAYS[way][0] != "fastreader"):
            if WAYS[theirs][1] == SAME_TYPE[WAYS[ours][1]]:
                count = len(runs[theirs][0]["seconds"])
                mine, other = (statistics.median(total(run, count) for run in runs[way]) for way in (ours, theirs))
                found.append(bar(f"{ours}: times faster than {theirs}", other / mine, FASTER, most=False))
    return found


def bar(name: str, value: float, bound: float, *, most: bool) -> dict[str, Any]:
    reached = value <= bound if most else value >= bound
    return {"name": name, "value": value, "bound": bound, "most": most, "reached": reached}


def table(record: dict[str, Any]) -> str:
    lines = ["| way | questions | seconds (min .. max) | summaries | validity | ranking | same texts | labels |"]
    lines.append("|-|-|-|-|-|-|-|-|")
    for way, row in record["rows"].items():
        spread = f"{min(row['seconds_all']):.2f} .. {max(row['seconds_all']):.2f}"
        stages = " | ".join(f"{row['by_stage'][stage]:.2f}" for stage in STAGES)
        lines.append(
            f"| {way} | {row['questions']} | {statistics.median(row['seconds_all']):.2f} ({spread}) | {stages} "
            f"| {row['same_texts']} of {row['texts']} | {row['label_error_max']:.4f} |"
        )
    note = " **The machine was loaded: do not quote these times.**" if record["loaded"] else ""
    lines += ["", f"K = {record['k']}, {record['machine']['processor']}. Labels: largest difference in nats.{note}", ""]
    for one in record["bars"]:
        limit = f"at {'most' if one['most'] else 'least'} {one['bound']:.2f}"
        lines.append(f"- {one['name']}: {one['value']:.3f}, {limit}: {'pass' if one['reached'] else 'FAIL'}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
