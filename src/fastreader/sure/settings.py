"""Hold the settings of SuRe and its variants in one object, which results and logs carry."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice, check_int, check_number, expect
from fastreader.core.options import MOST_NEW_TOKENS
from fastreader.models.loading.sentence_encoders import encoder_name
from fastreader.sure.templates import LETTERS, SureTemplate, VariantTemplate

MODES = ("loglikelihood", "generate")
PROMPTS = ("instruction_first", "passages_first")
EVALUATIONS = ("validity", "ranking")
WEIGHTS = ("tfidf", "encoder", "retriever", "equal")
_COUNTS = (
    *("words", "longest_candidate", "max_candidate_tokens", "max_summary_tokens", "max_label_tokens"),
    *("max_answer_tokens", "max_reasoning_tokens", "samples"),
)
_SURE_TEMPLATE, _VARIANT_TEMPLATE = SureTemplate(), VariantTemplate()


@checked
@dataclass(frozen=True)
class Settings:
    """Everything that an answer depends on, besides question, passages and readers.

    Attributes:
        k: number of candidates to ask for.
        mode: how validity and ranking are judged: "loglikelihood" takes the likelier label; "generate" parses the
            reader's reply, as the paper does.
        candidates_prompt: "instruction_first" is the paper's; "passages_first" starts with the passages, as the
            summary prompts do, so that a reader that caches a prefix reads them once for both.
        use: the evaluations that count: "validity", "ranking" or both.
        shots: (question, answer) pairs shown before the question in the candidates prompt and the base prompt.
        words: maximum number of words of a candidate that the prompt asks for.
        longest_candidate: number of words after which a candidate is cut, with a note.
        max_candidate_tokens, max_summary_tokens, max_label_tokens: maximum number of new tokens of a stage.
        max_answer_tokens: the same for the short answers of the variants.
        max_reasoning_tokens: the same for the chain of thought.
        on_overflow: policy for a prompt longer than the reader's context: "error", or "drop_passages" to leave out
            passages from the end, with a note, until prompt and new tokens fit.
        template: prompt texts of the four stages.
        variant_template: prompt texts of the variants.
        samples, temperature, seed: sampling of the variant that samples its candidates.
        weights: weights of passages in the variants that answer from each passage: "tfidf" (cosine with the question;
            needs scikit-learn), "encoder", "retriever" (softmax of the passages' scores) or "equal"; None takes the
            variant's own.
        weight_temperature: the weights are a softmax of the similarities divided by this.
        encoder: name of a sentence encoder, see `fastreader.models.loading.sentence_encoders.load_encoder`, or a
                function.
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
    template: SureTemplate = _SURE_TEMPLATE
    variant_template: VariantTemplate = _VARIANT_TEMPLATE
    samples: int = 5
    temperature: float = 0.7
    seed: int = 0
    weights: str | None = None
    weight_temperature: float = 0.1
    encoder: str | Callable[..., Any] = "all-minilm-l6-v2"

    def __post_init__(self) -> None:
        object.__setattr__(self, "use", tuple(self.use))
        expect(bool(self.use), "use", f"some of {', '.join(EVALUATIONS)}", self.use)
        for name in self.use:
            check_choice("use", name, EVALUATIONS)
        object.__setattr__(self, "shots", tuple(map(tuple, self.shots)))
        check_int("k", self.k, 1, len(LETTERS), json_value=True)
        for name in _COUNTS:
            check_int(name, getattr(self, name), 1, MOST_NEW_TOKENS, json_value=True)
        check_choice("mode", self.mode, MODES)
        check_choice("candidates_prompt", self.candidates_prompt, PROMPTS)
        check_choice("on_overflow", self.on_overflow, ("error", "drop_passages"))
        if self.weights is not None:
            check_choice("weights", self.weights, WEIGHTS)
        check_number("temperature", self.temperature, above=0, json_value=True)
        check_number("weight_temperature", self.weight_temperature, above=0, json_value=True)

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as JSON values, with a function as encoder by its name, a folder with its digest."""
        values = dataclasses.asdict(dataclasses.replace(self, encoder=""))
        encoder = encoder_name(self.encoder) if isinstance(self.encoder, str) else _full_name(self.encoder)
        return {**values, "use": list(self.use), "shots": [list(s) for s in self.shots], "encoder": encoder}

    def check_resumable(self) -> None:
        """Check that the encoder's name identifies it in another run.

        Rejects lambdas, functions inside others, methods, functools.partial and objects without a __qualname__.
        """
        named = isinstance(self.encoder, str) or _is_named(self.encoder)
        expected = "a name or a function with a unique __qualname__, which identifies it when the run resumes"
        expect(named, "encoder", expected, self.encoder)


def _is_named(encoder: Any) -> bool:
    if isinstance(encoder, MethodType):
        return isinstance(encoder.__self__, type)
    if not isinstance(encoder, FunctionType):
        return hasattr(encoder, "__qualname__")
    found: Any = sys.modules.get(encoder.__module__)
    for part in encoder.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is encoder or encoder.__qualname__ != encoder.__code__.co_qualname


def _full_name(encoder: Any) -> str:
    module, name = getattr(encoder, "__module__", ""), getattr(encoder, "__qualname__", type(encoder).__name__)
    return f"{module}.{name}"


def make_settings(settings: Settings | None, options: Mapping[str, Any]) -> Settings:
    """Return `settings`, or the defaults, with `options` replaced.

    Raises:
        InputError: if an option is unknown or its value is invalid.
    """
    expect(settings is None or isinstance(settings, Settings), "settings", "Settings", settings)
    known = Settings.__dataclass_fields__.keys()
    expect(options.keys() <= known, "settings", f"some of {', '.join(known)}", sorted(options.keys() - known))
    return Settings(**options) if settings is None else dataclasses.replace(settings, **options)
