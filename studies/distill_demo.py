"""Preference distillation on real questions: the packaged reader teaches a copy of itself with fewer layers.

    python studies/distill_demo.py questions.jsonl.gz --output runs/distill

The teacher scores K random orderings of every question; the student, the teacher without some layers under LoRA, is
trained on KL of the softmaxed scores and compared on held-out questions before and after. The same command resumes a
stopped run. The defaults take about an hour on one core: passages are cut to a few words, so the run demonstrates the
mechanism rather than a useful model.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from lib.shared import fingerprint, make_parser

from fastreader import Example, Passage, Reader, Template, load_examples, score_permutations
from fastreader.data.files import write_json
from fastreader.data.result_log import ResultLog
from fastreader.models.loading.packaged import PACKAGED
from fastreader.moi.distill import (
    DistillSettings,
    Evaluation,
    Lesson,
    LoraSettings,
    Student,
    compare,
    distill,
    make_lessons,
    read_teacher,
)
from fastreader.statistics import paired_bootstrap, wilcoxon

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from machine import describe
from plain_folder import folder_of


def main() -> None:
    a = parse()
    a.output.mkdir(parents=True, exist_ok=True)
    examples = shortened(load_examples(a.data, limit=a.questions + a.held_out), a.passages, a.words)
    folder = folder_of(a.model) if a.model in PACKAGED else a.model
    model, tokenizer = shallow(folder, a.dropped, getattr(torch, a.dtype))  # fails before the work if it cannot
    teach(a, examples)
    scores, template = read_teacher(a.output / "teacher.jsonl")
    lessons = make_lessons(examples, scores)
    student = Student.load((model, tokenizer), lora=LoraSettings(rank=a.rank, dropout=a.dropout))
    student.name = f"{a.model} without layers {a.dropped}"
    settings = DistillSettings(
        per_question=a.per_question,
        temperature=a.temperature,
        direction=a.direction,
        learning_rate=a.learning_rate,
        schedule="linear",
        warmup_steps=3,
        epochs=a.epochs,
        checkpoint_every=5,
        evaluate_every=a.evaluate_every,
        seed=a.seed,
    )
    run = distill(
        student,
        lessons[: a.questions],
        a.output / "student",
        settings,
        template=template,
        held_out=lessons[a.questions :],
        resume=True,
        max_steps=a.max_steps,
    )
    if not run.finished:
        print(f"stopped after {len(run.steps)} steps; the same command resumes the run")
        return
    (_, before), (_, after) = run.evaluations[0], run.evaluations[-1]
    result = {
        "machine": describe(),
        "arguments": {k: str(v) for k, v in vars(a).items() if k not in ("data", "output")},
        "trainable": sum(p.numel() for p in student.parameters()),
        "tokens": {
            "computed": sum(s.computed_tokens for s in run.steps),
            "given": sum(s.total_tokens for s in run.steps),
        },
        "seconds": round(sum(s.seconds for s in run.steps), 1),
        "held_out": table(before, after, lessons[a.questions :], settings),
        "evaluations": [{"step": step, **e.means} for step, e in run.evaluations],
        "loss": [s.loss for s in run.steps],
    }
    write_json(a.output / "result.json", result)
    plot(result["loss"], result["evaluations"], a.output / "loss.png")
    print(json.dumps({k: result[k] for k in ("held_out", "seconds", "tokens")}, indent=1))


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m", help="the teacher, which also supplies the student's layers")
    parser.add_argument(
        "--dropped", type=int, nargs="+", default=[28], help="indices of the layers that the student lacks"
    )
    parser.add_argument("--questions", type=int, default=640)
    parser.add_argument("--held-out", type=int, default=80)
    parser.add_argument("--passages", type=int, default=3)
    parser.add_argument("--words", type=int, default=16, help="keep this number of words of each passage")
    parser.add_argument("--orderings", type=int, default=6, help="K, scored by the teacher")
    parser.add_argument("--per-question", type=int, default=6, help="K', scored by the student in a step")
    parser.add_argument("--temperature", type=float, default=2.0)
    parser.add_argument("--direction", default="forward")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.0, help="dropout of LoRA; slow on a CPU")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16", help="type of the student's frozen weights")
    parser.add_argument(
        "--evaluate-every", type=int, default=20, help="steps between held-out evaluations; 0 disables them"
    )
    parser.add_argument("--precision", default="fast", help="precision of the teacher")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-steps", type=int, help="stop early; the same command resumes the run")
    return parser.parse_args()


def shortened(examples: list[Example], passages: int, words: int) -> list[Example]:
    def cut(p: Passage) -> Passage:
        return replace(p, text=" ".join(p.text.split()[:words]))

    return [replace(e, passages=[cut(p) for p in e.passages[:passages]], id=str(i)) for i, e in enumerate(examples)]


def teach(a: argparse.Namespace, examples: list[Example]) -> None:
    """Score K random orderings of every question with the teacher, except those that the file holds."""
    template = Template()
    settings = {"template": template.to_dict(), "model": a.model, "permutations": f"random:{a.orderings}"}
    settings |= {"words": a.words, "passages": a.passages, "seed": a.seed, "precision": a.precision}
    settings["data"] = fingerprint(a.data)
    with ResultLog(a.output / "teacher.jsonl", settings=settings, resume=True) as log:
        todo = [e for e in examples if e.id not in log]
        if not todo:
            return
        reader = Reader.load(a.model, precision=a.precision)
        results = score_permutations(
            reader, todo, permutations=f"random:{a.orderings}", seed=a.seed, template=template, question_only=True
        )
        for result in results:
            assert result.id is not None
            log.append(result.id, {k: v for k, v in result.to_dict().items() if k != "id"})


def shallow(folder: Any, dropped: list[int], dtype: torch.dtype) -> tuple[Any, Any]:
    """Load the model without some of its layers."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    own = model.model.layers
    kept = [i for i in range(len(own)) if i not in dropped]
    if not kept or not set(dropped) <= set(range(len(own))):
        raise SystemExit(f"--dropped: expected some of 0 to {len(own) - 1}, got {dropped}")
    model.model.layers = torch.nn.ModuleList([own[i] for i in kept])
    for i, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = i
    model.config.num_hidden_layers = len(kept)
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = [model.config.layer_types[i] for i in kept]
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def table(before: Evaluation, after: Evaluation, lessons: list[Lesson], settings: DistillSettings) -> dict[str, Any]:
    """Return means before and after on the held-out questions, and the paired difference."""
    scores = [lesson.scores for lesson in lessons]
    equal = compare(scores, [np.zeros_like(s) for s in scores], settings.temperature, settings.direction)
    out: dict[str, Any] = {"questions": len(before.kl), "kl_of_equal_scores": equal.means["kl"]}
    for name in ("kl", "spearman", "best"):
        first, last = ([float(v) for v in getattr(e, name)] for e in (before, after))
        out[name] = {
            "before": before.means[name],
            "after": after.means[name],
            "change": paired_bootstrap(last, first).to_dict(),
            "p": wilcoxon(last, first),
        }
    return out


def plot(losses: list[float], evaluations: list[dict[str, Any]], path: Path) -> None:
    """Plot the loss of each step and the evaluations on the held-out questions."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(range(1, len(losses) + 1), losses, lw=0.8, label="a step's questions")
    steps = [e["step"] for e in evaluations]
    left.plot(steps, [e["kl"] for e in evaluations], "o-", ms=4, label="held-out questions")
    left.set(xlabel="step", ylabel="KL, nats", ylim=(0, None))
    left.legend(fontsize=8)
    right.plot(steps, [e["spearman"] for e in evaluations], "o-", ms=4)
    right.set(xlabel="step", ylabel="rank correlation, held out", ylim=(0, 1))
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
