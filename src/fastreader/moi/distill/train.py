"""Preference distillation (MoI, section 3.3.2): a small reader learns which orderings a large one prefers."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastreader.core.checked import checked, checked_methods
from fastreader.core.checks import expect, require
from fastreader.core.progress import track
from fastreader.core.tree import TreeStats
from fastreader.data.files import write_text
from fastreader.errors import NumericsError
from fastreader.moi.distill import checkpoint as checkpoints
from fastreader.moi.distill.evaluation import Evaluation, evaluate, kl_loss
from fastreader.moi.distill.lessons import Lesson, draw
from fastreader.moi.distill.settings import DistillSettings
from fastreader.moi.distill.student import Student, score_rows
from fastreader.reader.prompts.template import Template, as_template

LOSSES = "losses.jsonl"


@dataclass(frozen=True)
class Step:
    """One optimiser step.

    Attributes:
        step: from 1.
        epoch: from 0.
        loss: mean KL over the batch's questions, nats.
        learning_rate: its learning rate.
        grad_norm: norm of the gradient before it was clipped.
        computed_tokens: tokens of its packed passes.
        total_tokens: tokens if every ordering ran alone.
        seconds: wall clock.
    """

    step: int
    epoch: int
    loss: float
    learning_rate: float
    grad_norm: float
    computed_tokens: int
    total_tokens: int
    seconds: float


@checked_methods
@dataclass(frozen=True)
class Distillation:
    """The result of a run.

    Attributes:
        steps: all steps, including those before it was resumed.
        evaluations: (step, evaluation on the held-out questions); the first is at step 0.
        folder: the folder with the checkpoints and losses.jsonl.
        finished: whether the last epoch is complete.
    """

    steps: list[Step]
    evaluations: list[tuple[int, Evaluation]]
    folder: Path
    finished: bool

    def to_dict(self) -> dict[str, Any]:
        """Return steps, evaluations and `finished` as JSON values."""
        return {
            "steps": [asdict(s) for s in self.steps],
            "evaluations": [{"step": step, **e.to_dict()} for step, e in self.evaluations],
            "finished": self.finished,
        }


@checked
def distill(
    student: Student,
    lessons: Sequence[Lesson],
    output: str | os.PathLike[str],
    settings: DistillSettings | None = None,
    *,
    template: Template | None = None,
    held_out: Sequence[Lesson] = (),
    resume: bool = False,
    max_steps: int | None = None,
    progress: bool | None = None,
) -> Distillation:
    """Train a student's adapter so that its softmaxed scores of a question's orderings follow the teacher's.

    Each question is one packed forward and backward over its K' orderings. A run is reproducible: the draws of a step
    depend only on the seed and the step, so a resumed run equals one that never stopped.

    Args:
        student: trained in place.
        lessons: the questions with the teacher's scores.
        output: a folder for checkpoints and the loss curve, ``losses.jsonl``, one step a line.
        settings: all other settings.
        template: texts of the prompt; must be the teacher's for the scores to mean the same.
        held_out: questions to evaluate on before, after and during training.
        resume: resume from the last checkpoint in `output`.
        max_steps: stop (with a checkpoint) after this total number of steps, as if interrupted.
        progress: show a bar; None shows it on a terminal only.

    Raises:
        InputError: if there are no lessons, if `output` holds a run and `resume` is off, or if it holds another run.
        ContextOverflowError: if an ordering is longer than the student's context.
        NumericsError: if the loss is not finite.
    """
    settings, template, folder = settings or DistillSettings(), as_template(template), Path(output)
    expect(len(lessons) > 0, "lessons", "at least one question", lessons)
    optimiser = torch.optim.AdamW(student.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    made = {
        "settings": settings.to_dict(),
        "lora": json.loads(json.dumps(asdict(student.lora))),
        "template": template.to_dict(),
        "student": student.name,
        "revision": student.revision,
        "lessons": [lesson.digest() for lesson in lessons],
        "held_out": [lesson.digest() for lesson in held_out],
    }
    run = _Run(student, lessons, held_out, settings, template, optimiser, folder, made)
    run.start(resume)
    total = settings.epochs * math.ceil(len(lessons) / settings.batch)
    last = total if max_steps is None else min(max_steps, total)
    with track("distilling", total, "steps", progress) as advance:
        advance(len(run.steps))
        for step, (epoch, batch) in enumerate(_batches(len(lessons), settings)):
            if len(run.steps) >= last:
                break
            if step < len(run.steps):
                continue
            run.step(step, epoch, batch, total)
            advance(1)
    run.finish(total)
    return Distillation(run.steps, run.evaluations, folder, len(run.steps) == total)


@dataclass
class _Run:
    """The state of a run between steps."""

    student: Student
    lessons: Sequence[Lesson]
    held_out: Sequence[Lesson]
    settings: DistillSettings
    template: Template
    optimiser: torch.optim.Optimizer
    folder: Path
    made: dict[str, Any]
    steps: list[Step] = field(default_factory=list)
    evaluations: list[tuple[int, Evaluation]] = field(default_factory=list)
    saved: int = -1

    def start(self, resume: bool) -> None:
        expect(not self.folder.is_file(), "output", "a folder, not a file", str(self.folder))
        found = checkpoints.latest(self.folder)
        fits = found is None or resume
        require(fits, f"{self.folder}: holds a run already; resume it, or name another folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        if found is None:
            self.evaluate()
        else:
            state = checkpoints.restore(found, self.student, self.optimiser, self.made)
            self.steps = [Step(**s) for s in state["steps"]]
            self.evaluations = [(e.pop("step"), Evaluation(**e)) for e in state["evaluations"]]
            self.saved = len(self.steps)
        lines = "".join(json.dumps(asdict(s)) + "\n" for s in self.steps)
        write_text(self.folder / LOSSES, lines)  # without the steps after the checkpoint, which run again

    def step(self, step: int, epoch: int, batch: list[int], total: int) -> None:
        started = time.perf_counter()
        settings, student = self.settings, self.student
        rate = settings.learning_rate_at(step, total)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        student.train(True, gradient_checkpointing=settings.gradient_checkpointing)
        self.optimiser.zero_grad(set_to_none=True)
        loss, spent = 0.0, TreeStats(0, 0, 0, 0)
        with torch.random.fork_rng(devices=[student.device] if student.device.type == "cuda" else []):
            torch.manual_seed(int(np.random.SeedSequence([settings.seed, step]).generate_state(1)[0]))
            for index in batch:
                lesson = self.lessons[index]
                rows = draw(lesson, settings.per_question, [settings.seed, epoch, index])
                scores, stats = score_rows(student, lesson, rows, settings.observation, self.template)
                teacher = torch.from_numpy(lesson.scores[rows]).to(scores)
                value = kl_loss(teacher, scores, settings.temperature, settings.direction) / len(batch)
                torch.autograd.backward(value)
                loss, spent = loss + value.item(), spent + stats
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), settings.max_grad_norm or math.inf)
        if not (math.isfinite(loss) and math.isfinite(norm.item())):
            raise NumericsError(f"step {step + 1}: the loss is {loss} and the gradient's norm {norm.item()}")
        self.optimiser.step()
        seconds = time.perf_counter() - started
        done = Step(step + 1, epoch, loss, rate, norm.item(), spent.computed_tokens, spent.total_tokens, seconds)
        self.steps.append(done)
        with (self.folder / LOSSES).open("a", encoding="utf-8") as curve:
            curve.write(json.dumps(asdict(done)) + "\n")
        if settings.evaluate_every and done.step % settings.evaluate_every == 0 and done.step < total:
            self.evaluate()
        if done.step % settings.checkpoint_every == 0:
            self.save()

    def evaluate(self) -> None:
        if self.held_out:
            result = evaluate(self.student, self.held_out, self.settings, self.template)
            self.evaluations.append((len(self.steps), result))

    def save(self) -> None:
        if self.saved == len(self.steps):
            return
        state = {
            "step": len(self.steps),
            "made": self.made,
            "steps": [asdict(s) for s in self.steps],
            "evaluations": [{"step": step, **asdict(e)} for step, e in self.evaluations],
        }
        checkpoints.save(self.folder, self.student, self.optimiser, state)
        self.saved = len(self.steps)

    def finish(self, total: int) -> None:
        self.student.train(False)
        if len(self.steps) == total and (not self.evaluations or self.evaluations[-1][0] != total):
            self.evaluate()
            self.saved = -1 if self.held_out else self.saved  # the last checkpoint carries the last evaluation
        self.save()


def _batches(count: int, settings: DistillSettings) -> Iterator[tuple[int, list[int]]]:
    """Yield (epoch, question indices) of every step, which depend only on the seed."""
    for epoch in range(settings.epochs):
        order = np.random.default_rng([settings.seed, epoch]).permutation(count).tolist()
        for first in range(0, count, settings.batch):
            yield epoch, order[first : first + settings.batch]
