"""The loss of preference distillation, and a student's agreement with its teacher on held-out questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.core.checked import checked, checked_methods
from fastreader.core.checks import expect
from fastreader.moi.distill.lessons import Lesson
from fastreader.moi.quantities.observations import FloatArray
from fastreader.reader.prompts.template import Template, as_template

if TYPE_CHECKING:
    from torch import Tensor

    from fastreader.moi.distill.settings import DistillSettings
    from fastreader.moi.distill.student import Student


def kl_loss(teacher: Tensor, student: Tensor, temperature: float = 1.0, direction: str = "forward") -> Tensor:
    """Return the KL divergence between the softmaxes of two scorings of the same orderings, nats.

    ``t = softmax(teacher / T), s = softmax(student / T)``; "forward" is ``sum t (log t - log s)``, "reverse"
    ``sum s (log s - log t)`` (MoI, section 3.3.2, which states neither T nor the direction).

    Args:
        teacher: float [K'], log-likelihoods in nats.
        student: float [K'], receives the gradient.
        temperature: T, nats.
        direction: "forward" or "reverse".
    """
    log_t = (teacher / temperature).log_softmax(dim=-1)
    log_s = (student / temperature).log_softmax(dim=-1)
    if direction == "reverse":
        log_t, log_s = log_s, log_t
    return (log_t.exp() * (log_t - log_s)).sum()


def kl_divergence(
    teacher: FloatArray, student: FloatArray, temperature: float = 1.0, direction: str = "forward"
) -> float:
    """Return `kl_loss` of NumPy arrays, without gradients."""
    from scipy.special import log_softmax

    log_t, log_s = log_softmax(teacher / temperature), log_softmax(student / temperature)
    if direction == "reverse":
        log_t, log_s = log_s, log_t
    return float((np.exp(log_t) * (log_t - log_s)).sum())


@checked_methods
@dataclass(frozen=True)
class Evaluation:
    """A student against its teacher, over all orderings of each question.

    Attributes:
        kl: for each question, KL of the softmaxed scores (direction and temperature of the settings), nats.
        spearman: for each question, rank correlation of the scores; 0 if the student ties them all.
        best: for each question, whether student and teacher prefer the same ordering.
    """

    kl: list[float]
    spearman: list[float]
    best: list[bool]

    @property
    def means(self) -> dict[str, float]:
        """Mean of each over the questions."""
        return {name: float(np.mean(values)) for name, values in asdict(self).items()}

    def to_dict(self) -> dict[str, Any]:
        """Return means and single values as JSON values."""
        return {"means": self.means, **asdict(self)}


@checked
def compare(
    teacher: Sequence[FloatArray], student: Sequence[FloatArray], temperature: float = 1.0, direction: str = "forward"
) -> Evaluation:
    """Evaluate both sides' scores of the same orderings, an array [K] for each question, nats."""
    expect(len(student) == len(teacher), "student", f"scores of {len(teacher)} questions, as teacher's", len(student))
    pairs = list(zip(teacher, student, strict=True))
    expect(bool(pairs), "teacher", "at least one question", teacher)
    flat = all(t.ndim == 1 and t.shape == s.shape and t.size for t, s in pairs)
    expect(flat, "teacher, student", "arrays [K] of equal length for each question", [t.shape for t, _ in pairs])
    return Evaluation(
        kl=[kl_divergence(t, s, temperature, direction) for t, s in pairs],
        spearman=[spearman(t, s) for t, s in pairs],
        best=[bool(t.argmax() == s.argmax()) for t, s in pairs],
    )


def spearman(a: FloatArray, b: FloatArray) -> float:
    """Return Spearman's rank correlation, ties at their mean rank, or 0 if either side ties everything."""
    from scipy.stats import spearmanr

    return 0.0 if np.ptp(a) == 0 or np.ptp(b) == 0 else float(spearmanr(a, b).statistic)


@checked
def evaluate(
    student: Student, lessons: Sequence[Lesson], settings: DistillSettings, template: Template | None = None
) -> Evaluation:
    """Score all orderings of each question with the student, without dropout or gradients, and `compare`."""
    import torch

    from fastreader.moi.distill.student import score_rows

    expect(len(lessons) > 0, "lessons", "at least one", lessons)
    student.train(False)
    scores = []
    with torch.no_grad():
        for lesson in lessons:
            rows = np.arange(len(lesson.scores))
            values, _ = score_rows(student, lesson, rows, settings.observation, as_template(template))
            scores.append(values.cpu().numpy())
    return compare([lesson.scores for lesson in lessons], scores, settings.temperature, settings.direction)
