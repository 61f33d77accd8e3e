"""Preference distillation: a small reader learns which orderings a large one prefers (MoI, section 3.3.2).

The teacher's scores come from `score_permutations` (or ``fastreader score --output``); a student with LoRA adapters
is trained on the KL divergence of the softmaxed scores. Needs the extra `distill` (PEFT). The names load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastreader.core.lazy import lazy_names

if TYPE_CHECKING:
    from fastreader.moi.distill.evaluation import Evaluation, compare, evaluate
    from fastreader.moi.distill.lessons import Lesson, make_lessons, read_teacher
    from fastreader.moi.distill.settings import DistillSettings, LoraSettings
    from fastreader.moi.distill.student import Student
    from fastreader.moi.distill.train import Distillation, Step, distill

_NAMES = {
    "evaluation": ("Evaluation", "compare", "evaluate"),
    "lessons": ("Lesson", "make_lessons", "read_teacher"),
    "settings": ("DistillSettings", "LoraSettings"),
    "student": ("Student",),
    "train": ("Distillation", "Step", "distill"),
}

__all__ = [
    "DistillSettings",
    "Distillation",
    "Evaluation",
    "Lesson",
    "LoraSettings",
    "Step",
    "Student",
    "compare",
    "distill",
    "evaluate",
    "make_lessons",
    "read_teacher",
]

__getattr__, __dir__ = lazy_names(__name__, {name: home for home, names in _NAMES.items() for name in names})
