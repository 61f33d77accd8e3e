"""Compare the model `fastreader` with the harness's HFLM on a multiple-choice task of lm-eval, in float32.

The task is local: the bundled questions, each behind the same solved examples and its own passages, with its candidates
as choices. So prompts share the examples, and the choices of a question share its whole prompt. Both models answer the
same requests through `lm_eval.simple_evaluate`, alternating, several rounds, in this process. The rate of a matrix
product is measured before and after: when it fell by more than a quarter, something else was running and the rows are
marked as loaded. The bar is HFLM's median time at least 4 times fastreader's.

    python benchmarks/lm_eval_shared.py                                     14 questions, 3 rounds
    python benchmarks/lm_eval_shared.py --limit 2 --shots 1 --rounds 1      to see it work
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import lm_eval
import machine
import torch
import transformers
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from fastreader import Example, Reader, load_examples
from fastreader.integrations.lm_eval import FastreaderLM
from fastreader.models.loading.load import load
from fastreader.models.loading.options import LoadOptions

HERE = Path(__file__).parent
QUESTIONS = HERE.parent / "examples" / "questions.jsonl"
BAR = 4.0
TASK = """task: shared_prompts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{prompt}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
metric_list: [{{metric: acc}}]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="a packaged name or a folder")
    parser.add_argument("--limit", type=int, help="number of questions; all by default")
    parser.add_argument("--shots", type=int, default=3, help="solved examples before each question")
    parser.add_argument("--batch-size", type=int, default=8, help="rows of a batch of HFLM")
    parser.add_argument("--precision", default="exact", choices=["exact", "high", "fast"], help="fastreader's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "lm_eval_shared.jsonl", help="rows go here")
    arguments = parser.parse_args()
    loaded = load(LoadOptions(arguments.model, "cpu", torch.float32, "exact", keep_integers=False))
    model, tokenizer = loaded.model, loaded.tokenizer
    assert isinstance(model, transformers.PreTrainedModel)
    reader = Reader.load((model, tokenizer), device="cpu", precision=arguments.precision)
    hflm = HFLM(pretrained=model.eval(), tokenizer=tokenizer, batch_size=arguments.batch_size, device="cpu")
    models = {"fastreader": FastreaderLM(reader), "hflm": hflm}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    scores: dict[str, list[float]] = {}
    before = machine.gemm_rate(torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        manager = write_task(Path(folder), arguments.shots, arguments.limit)
        for _ in range(arguments.rounds):
            for name, lm in models.items():
                taken, scores[name] = run(lm, manager)
                seconds[name].append(taken)
    after = machine.gemm_rate(torch.float32)
    differences = [abs(a - b) for a, b in zip(scores["fastreader"], scores["hflm"], strict=True)]
    shared = {
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
        "model": arguments.model,
        "shots": arguments.shots,
        "requests": len(differences),
        "largest_difference": max(differences),
        "gemm_flops": [before, after],
        "loaded": min(before, after) < 0.75 * max(before, after),
        "machine": machine.describe(),
    }
    settings = {"fastreader": {"precision": arguments.precision}, "hflm": {"batch_size": arguments.batch_size}}
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with arguments.output.open("a", encoding="utf-8") as stream:
        for name, values in seconds.items():
            row = {"way": name, **settings[name], "seconds": medians[name], "seconds_all": values, **shared}
            stream.write(json.dumps(row) + "\n")
            print(f"{name:12} {medians[name]:8.2f} s")
    ratio = medians["hflm"] / medians["fastreader"]
    print(f"{len(differences)} requests, largest difference {max(differences):.1e} nats{', LOADED' * shared['loaded']}")
    print(f"ratio {ratio:.2f}, bar {BAR}: {'met' if ratio >= BAR else 'not met'}")


def run(lm: Any, manager: TaskManager) -> tuple[float, list[float]]:
    """Evaluate the task once: seconds spent scoring its requests, and each request's log-likelihood."""
    taken: list[float] = []
    scored: list[float] = []
    loglikelihood = lm.loglikelihood

    def timed(requests: Any, **options: Any) -> Any:
        started = time.perf_counter()
        found = loglikelihood(requests, **options)
        taken.append(time.perf_counter() - started)
        scored.extend(logprob for logprob, _ in found)
        return found

    lm.loglikelihood = timed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lm_eval.simple_evaluate(lm, tasks=["shared_prompts"], task_manager=manager, bootstrap_iters=0)
    finally:
        del lm.loglikelihood
    return sum(taken), scored


def write_task(folder: Path, shots: int, limit: int | None) -> TaskManager:
    """Write the task's questions and configuration, and return the manager that finds it."""
    examples = [example for example in load_examples(QUESTIONS) if len(example.candidates) > 1]
    head = "".join(f"{prompt(example)} {example.answers[0]}\n\n" for example in examples[:shots])
    rows = []
    for example in examples[shots:][:limit]:
        choices = list(example.candidates)
        label = choices.index(example.answers[0])
        rows.append({"prompt": head + prompt(example), "choices": choices, "label": label})
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "shared_prompts.yaml").write_text(TASK.format(data=data), encoding="utf-8")
    return TaskManager(include_path=str(folder), include_defaults=False)


def prompt(example: Example) -> str:
    """A question behind its passages, up to the answer."""
    passages = "\n\n".join(f"{passage.title}\n{passage.text}" for passage in example.passages)
    return f"{passages}\n\nQuestion: {example.question}\nAnswer:"


if __name__ == "__main__":
    main()
