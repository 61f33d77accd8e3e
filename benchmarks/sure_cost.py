"""Stages 2 to 4 of SuRe beside the same prompts sent one by one through transformers, nothing kept between calls.

The prompts are those SuRe makes for the questions with the reader in float32. Every way then runs them in a process of
its own, in turn, several rounds. Each label is a call of its own for transformers. With "no cache at all" the keys and
values are not even kept from one new token to the next.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import torch
import workloads

from fastreader import Passage, Reader, load_examples, sure

RESULTS = Path(__file__).parent / "results"
STAGES = ("summaries", "validity", "ranking")
WAYS = {
    "fastreader, fast": ("fastreader", "fast"),
    "fastreader, exact": ("fastreader", "exact"),
    "transformers one by one, bf16": ("transformers", "bfloat16"),
    "transformers one by one, fp32": ("transformers", "float32"),
    "transformers one by one, no cache at all, fp32": ("transformers_uncached", "float32"),
}
Replies = dict[str, list[Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="questions with passages; a bundled one by default")
    parser.add_argument("--questions", type=int, default=5)
    parser.add_argument("--passages", type=int, default=10)
    parser.add_argument("--k", type=int, default=2)
    parser.add_argument("--max-summary-tokens", type=int, default=128)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="*", default=list(WAYS)[:-1], choices=list(WAYS), metavar="WAY")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        way, precision, file = arguments.child
        print(json.dumps(child(arguments.model, json.loads(Path(file).read_text()), way, precision)))
        return
    work = prepare(arguments)
    before = machine.gemm_rate(torch.float32)
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in arguments.ways}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "work.json"
        file.write_text(json.dumps(work))
        for round_ in range(arguments.rounds):
            for way in arguments.ways:
                command = [sys.executable, __file__, "--model", arguments.model, "--child", *WAYS[way], str(file)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                runs[way].append(json.loads(done.stdout))
                print(f"round {round_ + 1}, {way}: {sum(runs[way][-1]['seconds'].values()):.2f} s", file=sys.stderr)
    after = machine.gemm_rate(torch.float32)
    record = {
        "time": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        "machine": machine.describe(),
        "questions": len(work),
        "k": arguments.k,
        "max_summary_tokens": arguments.max_summary_tokens,
        "loaded": after < 0.75 * before,
        "rows": {way: summary(runs[way], work) for way in runs},
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "sure_cost.jsonl").open("a") as stream:
        stream.write(json.dumps(record) + "\n")
    print(table(record))


class Recorder:
    """A journal that only looks on: what each question asks, and what it is told."""

    def __init__(self, questions: int) -> None:
        self.work: list[dict[str, Any]] = [{} for _ in range(questions)]

    def recall(self, index: int, step: int, request: Any) -> None:
        return None

    def record(self, index: int, step: int, request: Any, replies: Any, cost: Any) -> None:
        written = hasattr(request, "prompts")
        self.work[index][request.stage] = {
            "prompts": request.prompts if written else request.pairs,
            "max_new_tokens": request.max_new_tokens if written else 0,
            "stop": list(request.stop) if written else [],
            "expected": [g.text for texts in replies for g in texts] if written else [r.logprob for r in replies],
            "given": cost.given - cost.new,
            "computed": cost.computed - cost.new,
            "new": cost.new,
        }


def prepare(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The requests of stages 2 to 4 as token ids.

    The candidates are the question's own, or else its answer and other questions', so that every question has K.
    """
    from fastreader.sure.lockstep import run
    from fastreader.sure.program import judge
    from fastreader.sure.replies import CandidateReply
    from fastreader.sure.summaries import summarise
    from fastreader.sure.task import Readers, Task

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


def child(model: str, work: list[dict[str, Any]], way: str, precision: str) -> dict[str, Any]:
    """Load, then run all requests once; seconds by stage, and what came out."""
    run: Callable[[dict[str, Any]], list[Any]]
    if way == "fastreader":
        reader = Reader.load(model, precision=precision)

        def run(request: dict[str, Any]) -> list[Any]:
            return through_fastreader(reader, request)
    else:
        run = transformers_runner(model, getattr(torch, precision), use_cache=way == "transformers")
    seconds = dict.fromkeys(STAGES, 0.0)
    replies: list[Replies] = []
    for question in work:
        told: Replies = {}
        for stage in STAGES:
            started = time.perf_counter()
            told[stage] = run(question[stage])
            seconds[stage] += time.perf_counter() - started
        replies.append(told)
    return {"seconds": seconds, "replies": replies}


def through_fastreader(reader: Reader, request: dict[str, Any]) -> list[Any]:
    if not request["max_new_tokens"]:
        return [r.logprob for r in reader.loglikelihood(request["prompts"])]
    texts = reader.generate(request["prompts"], max_new_tokens=request["max_new_tokens"], stop=request["stop"])
    return [generations[0].text for generations in texts]


def transformers_runner(model: str, dtype: torch.dtype, use_cache: bool) -> Callable[[dict[str, Any]], list[Any]]:
    import transformers

    from fastreader.models.packaged import PACKAGED, folder_of

    transformers.utils.logging.disable_progress_bar()
    folder = folder_of(model) if model in PACKAGED else model
    own = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    @torch.inference_mode()
    def run(request: dict[str, Any]) -> list[Any]:
        if not request["max_new_tokens"]:
            return [scored(own, *pair) for pair in request["prompts"]]
        out = []
        for prompt in request["prompts"]:
            ids = torch.tensor([prompt])
            whole = own.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=request["max_new_tokens"],
                do_sample=False,
                use_cache=use_cache,
                stop_strings=request["stop"],
                tokenizer=tokenizer,
                pad_token_id=tokenizer.eos_token_id,
            )
            text = tokenizer.decode(whole[0, len(prompt) :], skip_special_tokens=True)
            out.append(next((text[: text.index(s)] for s in request["stop"] if s in text), text))
        return out

    return run


def scored(own: Any, context: list[int], continuation: list[int]) -> float:
    ids = torch.tensor([context + continuation])
    logits = own(input_ids=ids, use_cache=False).logits[0, len(context) - 1 : -1]
    return float(logits.double().log_softmax(-1).gather(1, ids[0, len(context) :, None]).sum())


def summary(runs: list[dict[str, Any]], work: list[dict[str, Any]]) -> dict[str, Any]:
    by_stage = {stage: statistics.median(run["seconds"][stage] for run in runs) for stage in STAGES}
    pairs = [(run["replies"][i], question) for run in runs[:1] for i, question in enumerate(work)]
    texts = [a.strip() == b.strip() for told, q in pairs for a, b in zip(*both(told, q, "summaries"), strict=True)]
    errors = [abs(a - b) for told, q in pairs for s in STAGES[1:] for a, b in zip(*both(told, q, s), strict=True)]
    return {
        "seconds": statistics.median(sum(run["seconds"].values()) for run in runs),
        "seconds_all": [sum(run["seconds"].values()) for run in runs],
        "by_stage": by_stage,
        "given": sum(question[stage]["given"] for question in work for stage in STAGES),
        "computed": sum(question[stage]["computed"] for question in work for stage in STAGES),
        "stage_2": [sum(q["summaries"][kind] for q in work) for kind in ("given", "computed")],
        "new": sum(question["summaries"]["new"] for question in work),
        "same_texts": sum(texts),
        "texts": len(texts),
        "label_error_max": max(errors),
    }


def both(told: Replies, question: dict[str, Any], stage: str) -> tuple[list[Any], list[Any]]:
    return told[stage], question[stage]["expected"]


def table(record: dict[str, Any]) -> str:
    best = min(row["seconds"] for row in record["rows"].values())
    lines = [
        "| way | seconds (min .. max) | times the fastest | summaries | validity | ranking | same texts | labels |"
    ]
    lines.append("|-|-|-|-|-|-|-|-|")
    for way, row in record["rows"].items():
        spread = f"{min(row['seconds_all']):.2f} .. {max(row['seconds_all']):.2f}"
        stages = " | ".join(f"{row['by_stage'][stage]:.2f}" for stage in STAGES)
        lines.append(
            f"| {way} | {row['seconds']:.2f} ({spread}) | {row['seconds'] / best:.1f} | {stages} "
            f"| {row['same_texts']} of {row['texts']} | {row['label_error_max']:.4f} |"
        )
    row = next(iter(record["rows"].values()))
    given, computed = row["stage_2"]
    note = " **The machine was loaded: do not quote these times.**" if record["loaded"] else ""
    share, second = row["computed"] / row["given"], computed / given
    k, processor = record["k"], record["machine"]["processor"]
    return "\n".join(lines) + (
        f"\n\n{record['questions']} questions, K = {k}, {processor}. Prompt tokens of stages 2 to 4: {row['given']:,} "
        f"given, {row['computed']:,} ({share:.1%}) computed by fastreader; of stage 2 {second:.1%}; {row['new']:,} new "
        f"tokens. Labels: largest difference to the reader in float32, nats.{note}"
    )


if __name__ == "__main__":
    main()
