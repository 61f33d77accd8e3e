"""Answer equivalence by a classifier that was trained for it, as BEM was (Bulian et al. 2022, arXiv 2202.07654)."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from fastreader.core.checks import expect
from fastreader.eor.similarity.loading import Model
from fastreader.eor.types import FloatArray

EQUIVALENT_CLASS = "equivalent"


class AnswerEquivalence:
    """P(an answer is equivalent to a right one | question) by a sequence classifier of two classes.

    The classifier reads ``answer [SEP] right answer [SEP] question``, BEM's input. It is loaded for the first answer.

    Args:
        model: a folder or hub id that transformers' AutoModelForSequenceClassification loads. The class is the one
            that its config names "equivalent", or else the second.
        device: torch device; None uses CUDA if available.
        batch_size: number of answers per forward pass.
    """

    def __init__(self, model: str | os.PathLike[str], *, device: str | None = None, batch_size: int = 64) -> None:
        self._model = Model("AutoModelForSequenceClassification", model, device, batch_size)

    def probabilities(self, answers: Sequence[tuple[str, str, str]]) -> FloatArray:
        """Return float64 [A] for (question, right answer, answer).

        Raises:
            InputError: if the model has another number of classes, or its tokenizer no separator.
        """
        import torch

        model, tokenizer = self._model.load()
        names = [str(model.config.id2label[i]).lower() for i in range(model.config.num_labels)]
        expect(len(names) == 2, f"bem:{self._model.source}", "a classifier of 2 classes", names)
        between = tokenizer.sep_token
        expect(between is not None, f"bem:{self._model.source}", "a tokenizer with a separator", between)
        column = names.index(EQUIVALENT_CLASS) if EQUIVALENT_CLASS in names else 1
        texts = [(answer, f"{right} {between} {question}") for question, right, answer in answers]
        out = np.zeros(len(texts))
        for part, inputs in self._model.batches(texts):
            with torch.inference_mode():
                logits = model(**inputs.to(model.device)).logits.double()
            out[part] = logits.softmax(-1)[:, column].cpu().numpy()
        return out
