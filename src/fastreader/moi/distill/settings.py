"""Settings of a student's adapter and training."""

from __future__ import annotations

from dataclasses import dataclass

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice, check_int, check_number
from fastreader.data.record import Record

DIRECTIONS = ("forward", "reverse")
OBSERVATIONS = ("question", "joint")
SCHEDULES = ("constant", "linear")


@checked
@dataclass(frozen=True)
class LoraSettings:
    """The adapter: MoI's values (appendix A), over all linear layers, which the paper does not state.

    Attributes:
        rank: r.
        alpha: the adapter's output is scaled by alpha / r.
        dropout: on the adapter's input while training.
        target_modules: as PEFT takes them: "all-linear", or names of modules.
    """

    rank: int = 8
    alpha: float = 32
    dropout: float = 0.1
    target_modules: str | tuple[str, ...] = "all-linear"

    def __post_init__(self) -> None:
        check_int("LoraSettings.rank", self.rank, json_value=True)
        check_number("LoraSettings.alpha", self.alpha, above=0, json_value=True)
        check_number("LoraSettings.dropout", self.dropout, minimum=0, below=1, json_value=True)


@checked
@dataclass(frozen=True)
class DistillSettings(Record):
    """Arguments of preference distillation, with MoI's defaults (appendix A) if the paper states them.

    Attributes:
        observation: the score of an ordering: "question", log P(question | passages), or "joint", that plus
            log P(passages), equation 3 of the paper.
        per_question: K', orderings of a question drawn in each epoch (not stated); all K if K is smaller.
        temperature: both softmaxes are taken of score / temperature, in nats (not stated).
        direction: "forward" is KL(teacher || student), "reverse" KL(student || teacher) (not stated).
        learning_rate: peak, of AdamW.
        weight_decay: of AdamW.
        batch: questions for each optimiser step; each question is one pass.
        epochs: passes over the questions.
        warmup_steps: steps in which the learning rate rises linearly from 0.
        schedule: "constant" after that, or "linear" down to 0 at the last step.
        max_grad_norm: gradients are scaled down to this norm; None disables it.
        checkpoint_every: steps between checkpoints; the end always writes one.
        evaluate_every: steps between evaluations on the held-out questions; 0 evaluates before and after only.
        gradient_checkpointing: keep only the layers' inputs and compute the rest again in the backward pass.
        seed: of the questions' order, the orderings drawn and dropout.
    """

    observation: str = "question"
    per_question: int = 4
    temperature: float = 1.0
    direction: str = "forward"
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    batch: int = 4
    epochs: int = 5
    warmup_steps: int = 0
    schedule: str = "constant"
    max_grad_norm: float | None = 1.0
    checkpoint_every: int = 100
    evaluate_every: int = 0
    gradient_checkpointing: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in (("observation", OBSERVATIONS), ("direction", DIRECTIONS), ("schedule", SCHEDULES)):
            check_choice(f"DistillSettings.{name}", getattr(self, name), choices)
        least = {"per_question": 2, "batch": 1, "epochs": 1, "checkpoint_every": 1}
        for name, minimum in {**least, "warmup_steps": 0, "evaluate_every": 0, "seed": 0}.items():
            check_int(f"DistillSettings.{name}", getattr(self, name), minimum, json_value=True)
        for name in ("temperature", "learning_rate"):
            check_number(f"DistillSettings.{name}", getattr(self, name), above=0, json_value=True)
        check_number("DistillSettings.weight_decay", self.weight_decay, minimum=0, json_value=True)
        check_number("DistillSettings.max_grad_norm", self.max_grad_norm, above=0, optional=True, json_value=True)

    def learning_rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of step `step` (from 0) of `steps`.

        Raises:
            InputError: if `steps` < 1 or `step` is not in [0, steps).
        """
        check_int("steps", steps, 1, 2**53)
        check_int("step", step, 0, steps - 1)
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / (self.warmup_steps + 1)
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * (steps - step) / max(steps - self.warmup_steps, 1)
