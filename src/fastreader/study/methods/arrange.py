"""arrange: the passages by the retriever's scores where the reader's bias is largest, then one reading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastreader.core.checks import expect
from fastreader.data import Example
from fastreader.passages.arrange import Arranger, arrange
from fastreader.reader.programs.requests import Program
from fastreader.reader.prompts.template import Template
from fastreader.study.method import Answered, Batch, Family, NotApplicable, StudyMethod, check_options
from fastreader.study.methods.reading import read, template_of

_OPTIONS = ("bias", "max_new_tokens")


@dataclass(frozen=True)
class ArrangeMethod(StudyMethod):
    """One greedy reading of the passages as `fr.arrange` places them, for any number of passages.

    Attributes:
        template: the prompt's texts.
        max_new_tokens: at most this many tokens of the answer.
        arranger: places passages; None takes the calibrations at hand of the reader.
    """

    template: Template
    max_new_tokens: int
    arranger: Arranger | None

    def program(self, batch: Batch, example: Example) -> Program[Answered]:
        """Return the program for one question; see `StudyMethod.program`."""
        if not example.passages:
            raise NotApplicable("arrange: the question has no passages")
        arranger = self.arranger or Arranger.for_reader(batch.reader, self.template)
        places = arrange(list(enumerate(example.passages)), arranger, _scores(example))
        order = [index for index, _ in places]
        reply = yield from read(batch, example, order, self.template, self.max_new_tokens)
        return Answered(reply.text.strip(), {"order": order, "design": "arranged", "calibrated": [*arranger.biases]})


def _scores(example: Example) -> list[float]:
    """Return the retriever's scores; without any, numbers that fall with the place.

    Raises:
        NotApplicable: if only some passages have a score.
    """
    known = [passage.score for passage in example.passages if passage.score is not None]
    if known and len(known) < len(example.passages):
        raise NotApplicable(f"arrange: {len(known)} of {len(example.passages)} passages have a score")
    return known or [-float(place) for place in range(len(example.passages))]


def _make(variant: str, options: dict[str, Any], study: Any) -> ArrangeMethod:
    check_options("arrange", options, _OPTIONS)
    path = options.get("bias", study.moi.get("bias"))
    expect(path is None or isinstance(path, str), "bias", "a file of a calibration or an arranger", path)
    tokens = options.get("max_new_tokens", study.max_new_tokens)
    return ArrangeMethod(template_of(study), tokens, None if path is None else Arranger.load(path))


ARRANGE = Family(
    "arrange", "the best passages where the reader looks most, read once", lambda: [""], _make, lambda _: _OPTIONS
)
