"""arrange: the passages by the retriever's scores where the reader's bias is largest, then one reading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastreader.core.checks import expect
from fastreader.data import Example
from fastreader.passages.arrange import Arranger, arrange
from fastreader.reader.programs.requests import Program
from fastreader.study.method import Answered, Batch, Family, NotApplicable, check_options
from fastreader.study.methods.reading import TemplateMethod

_OPTIONS = ("bias", "max_new_tokens")


@dataclass(frozen=True)
class ArrangeMethod(TemplateMethod):
    """One greedy reading of the passages as `fr.arrange` places them, for any number of passages.

    Attributes:
        arranger: places passages; None takes the reader's calibrations.
    """

    reads = "arrange"
    arranger: Arranger | None = None

    def _answer(self, batch: Batch, example: Example) -> Program[Answered]:
        arranger = self.arranger or Arranger.for_reader(batch.reader, self.template)
        places = arrange(list(enumerate(example.passages)), arranger, _scores(example))
        order = [index for index, _ in places]
        answered = yield from self._read(batch, example, order, design="arranged", calibrated=[*arranger.biases])
        return answered


def _scores(example: Example) -> list[float]:
    """Return the retriever's scores, or numbers that fall with the place if there are none.

    Raises:
        NotApplicable: if only some passages have a score.
    """
    known = [passage.score for passage in example.passages if passage.score is not None]
    if known and len(known) < len(example.passages):
        raise NotApplicable(f"arrange: {len(known)} of {len(example.passages)} passages have a score")
    return known or [-float(place) for place in range(len(example.passages))]


def _make(variant: str, options: dict[str, Any], study: Any) -> ArrangeMethod:
    check_options("arrange", options, _OPTIONS)
    path = options.pop("bias", study.moi.get("bias"))
    expect(path is None or isinstance(path, str), "bias", "a file of a calibration or an arranger", path)
    return ArrangeMethod.of(study, {**options, "arranger": None if path is None else Arranger.load(path)})


ARRANGE = Family("arrange", "the best passages where the reader looks most, read once", _make, lambda _: _OPTIONS)
