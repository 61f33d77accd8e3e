"""Settings of SuRe and its variants, in one object that results and logs carry."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any

from fastreader.core.checks import check_choice, check_int
from fastreader.errors import InputError
from fastreader.models.encoders import encoder_name
from fastreader.sure.templates import SureTemplate
from fastreader.sure.texts import MOST_CANDIDATES
from fastreader.sure.variant_templates import VariantTemplate

MODES = ("loglikelihood", "generate")
PROMPTS = ("instruction_first", "passages_first")
EVALUATIONS = ("validity", "ranking")
WEIGHTS = ("tfidf", "encoder", "retriever", "equal")


@dataclass(frozen=True)
class Settings:
    """What an answer depends on besides question, passages and readers.

    Attributes:
        k: candidates asked for.
        mode: how validity and ranking are judged: "loglikelihood" takes the likelier label; "generate" parses what
            the reader writes, as the paper does.
        candidates_prompt: "instruction_first" is the paper's; "passages_first" begins with the passages as the
            summary prompts do, so that a reader that keeps a prefix reads them once for both.
        use: which evaluations count: "validity", "ranking" or both.
        shots: (question, answer) pairs shown before the question when candidates are asked for, and in the base
            prompt.
        words: most words of a candidate, as asked for.
        longest_candidate: words after which a candidate is cut, with a note.
        max_candidate_tokens, max_summary_tokens, max_label_tokens: new tokens of a stage at most.
        max_answer_tokens: of the short answers of the variants.
        max_reasoning_tokens: of the chain of thought.
        on_overflow: a prompt longer than the reader's context: "error", or "drop_passages" to leave out passages
            from the end, with a note, until prompt and new tokens fit.
        template: prompt texts of the four stages.
        variant_template: of the variants.
        samples, temperature, seed: draws of the variant that samples its candidates.
        weights: of passages, in the variants that answer from each passage: "tfidf" (cosine with the question; needs
            scikit-learn), "encoder", "retriever" (softmax of the passages' scores) or "equal"; None: the variant's.
        weight_temperature: the weights are a softmax of the similarities divided by this.
        encoder: sentence encoder, as `fastreader.models.encoders.load_encoder` takes its name, or a function.
    """

    k: int = 2
    mode: str = "loglikelihood"
    candidates_prompt: str = "instruction_first"
    use: tuple[str, ...] = EVALUATIONS
    shots: tuple[tuple[str, str], ...] = ()
    words: int = 3
    longest_candidate: int = 20
    max_candidate_tokens: int = 64
    max_summary_tokens: int = 512
    max_label_tokens: int = 8
    max_answer_tokens: int = 32
    max_reasoning_tokens: int = 256
    on_overflow: str = "error"
    template: SureTemplate = field(default_factory=SureTemplate)
    variant_template: VariantTemplate = field(default_factory=VariantTemplate)
    samples: int = 5
    temperature: float = 0.7
    seed: int = 0
    weights: str | None = None
    weight_temperature: float = 0.1
    encoder: str | Callable[..., Any] = "all-minilm-l6-v2"

    def __post_init__(self) -> None:
        object.__setattr__(self, "use", _evaluations(self.use))
        object.__setattr__(self, "shots", _pairs(self.shots))
        for name, kind in (("template", SureTemplate), ("variant_template", VariantTemplate)):
            if not isinstance(getattr(self, name), kind):
                raise InputError(f"{name}: expected a {kind.__name__}, got {type(getattr(self, name)).__name__}")
        check_int("k", self.k, 1, MOST_CANDIDATES, json_value=True)
        for name in (
            "words",
            "longest_candidate",
            "max_candidate_tokens",
            "max_summary_tokens",
            "max_label_tokens",
            "max_answer_tokens",
            "max_reasoning_tokens",
            "samples",
        ):
            check_int(name, getattr(self, name), json_value=True)
        check_choice("mode", self.mode, MODES)
        check_choice("candidates_prompt", self.candidates_prompt, PROMPTS)
        check_choice("on_overflow", self.on_overflow, ("error", "drop_passages"))
        if not self.use:
            raise InputError(f"use: expected some of {', '.join(EVALUATIONS)}, got none")
        for name in self.use:
            check_choice("use", name, EVALUATIONS)
        if self.weights is not None:
            check_choice("weights", self.weights, WEIGHTS)
        for name in ("temperature", "weight_temperature"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise InputError(f"{name}: expected a finite number above 0, got {value!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InputError(f"seed: expected an integer, got {self.seed!r}")
        if not isinstance(self.encoder, str) and not callable(self.encoder):
            raise InputError(f"encoder: expected a name or a function, got {type(self.encoder).__name__}")

    def to_dict(self) -> dict[str, Any]:
        """All settings as JSON values; an encoder that is a function appears by its name, a folder's with a digest."""
        values = dataclasses.asdict(dataclasses.replace(self, encoder=""))
        encoder = encoder_name(self.encoder) if isinstance(self.encoder, str) else _named(self.encoder)
        return {**values, "use": list(self.use), "shots": [list(s) for s in self.shots], "encoder": encoder}

    def check_named(self) -> None:
        """Refuse an encoder that another run could not be told to have used: one without a name of its own.

        Raises:
            InputError: it is no function of a module, but a lambda, one defined inside a function, a method, a
                functools.partial or another object, and nobody gave it a __qualname__.
        """
        if not isinstance(self.encoder, str) and not _is_named(self.encoder):
            raise InputError(
                f"encoder: {_named(self.encoder)} may be another function of that name than the one results were made "
                "with; give the encoder's name, or a function with a __qualname__ of its own"
            )


def _is_named(encoder: Any) -> bool:
    if isinstance(encoder, MethodType):
        return isinstance(encoder.__self__, type)
    if not isinstance(encoder, FunctionType):
        return hasattr(encoder, "__qualname__")
    there: Any = sys.modules.get(encoder.__module__)
    for part in encoder.__qualname__.split("."):
        there = getattr(there, part, None)
    return there is encoder or encoder.__qualname__ != encoder.__code__.co_qualname


def _named(encoder: Any) -> str:
    module, name = getattr(encoder, "__module__", ""), getattr(encoder, "__qualname__", type(encoder).__name__)
    return f"{module}.{name}"


def make_settings(settings: Settings | None, options: dict[str, Any]) -> Settings:
    """`settings`, or the defaults, with `options` replaced.

    Raises:
        InputError: an option that is no setting, or a value that cannot be.
    """
    if settings is not None and not isinstance(settings, Settings):
        raise InputError(f"settings: expected Settings, got {type(settings).__name__}")
    known = [f.name for f in dataclasses.fields(Settings)]
    if unknown := sorted(set(options) - set(known)):
        raise InputError(f"unknown settings {', '.join(unknown)}; there are: {', '.join(known)}")
    return dataclasses.replace(settings or Settings(), **options)


def _evaluations(use: Any) -> tuple[str, ...]:
    """The names of evaluations as a tuple; which they are is checked elsewhere."""
    if isinstance(use, str) or not isinstance(use, Iterable):
        raise InputError(f"use: expected some of {', '.join(EVALUATIONS)}, in a list, got {use!r}")
    return tuple(use)


def _pairs(shots: Any) -> tuple[tuple[str, str], ...]:
    """The answered questions, checked."""
    found = None if isinstance(shots, str) or not isinstance(shots, Iterable) else tuple(shots)
    if found is None or any(isinstance(p, str) or not isinstance(p, Sequence) or len(p) != 2 for p in found):
        raise InputError(f"shots: expected (question, answer) pairs, got {shots if found is None else found!r}")
    return tuple((str(question), str(answer)) for question, answer in found)
