"""Score entailment between answers, by a cross-encoder or by the reader."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import expect
from fastreader.core.protocol import ReaderProtocol
from fastreader.eor.similarity.base import Pair, Similarity
from fastreader.eor.similarity.loading import Model
from fastreader.eor.types import FloatArray
from fastreader.reader.prompts.texts import PromptTexts, check_fields


@checked
class CrossEncoderNli(Similarity):
    """P(the first answer entails the second) by a sequence classifier.

    A voter reads the mean of both directions.
    """

    symmetric = False

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        statement: str = "{answer}",
        label: str = "entailment",
        device: str | None = None,
        batch_size: int = 64,
    ) -> None:
        """Choose the model, which is loaded for the first score.

        Args:
            model: a folder or hub id that transformers' AutoModelForSequenceClassification loads, such as
                "microsoft/deberta-xlarge-mnli", the paper's.
            statement: an answer as premise and as hypothesis; fields {answer} and optionally {question}.
            label: the class whose probability is the score, as the model's config names it, in any case.
            device: torch device; None uses CUDA if available.
            batch_size: number of pairs per forward pass; it changes scores only by rounding.
        """
        super().__init__()
        check_fields("statement", statement, {"answer"}, {"question"})
        self.name = f"nli:{os.fspath(model)}"
        self.reads_question = "{question}" in statement
        self._statement, self._label = statement, label
        self._model = Model("AutoModelForSequenceClassification", model, device, batch_size)

    def settings(self) -> dict[str, Any]:
        """Return the statement and the class."""
        return {"statement": self._statement, "label": self._label}

    def _compute(self, pairs: list[Pair]) -> FloatArray:
        import torch

        model, _ = self._model.load()
        labels = {str(name).lower(): int(i) for i, name in model.config.id2label.items()}
        column = labels.get(self._label.lower())
        expect(column is not None, "label", f"a class of {self._model.source}: {', '.join(labels)}", self._label)
        texts = [(self._text(p, p.first), self._text(p, p.second)) for p in pairs]
        out = np.zeros(len(pairs))
        for part, inputs in self._model.batches(texts):
            with torch.inference_mode():
                logits = model(**inputs.to(model.device)).logits.double()
            out[part] = logits.softmax(-1)[:, column].cpu().numpy()
        return out

    def _text(self, pair: Pair, answer: str) -> str:
        return self._statement.format(question=pair.question, answer=answer)


@checked
@dataclass(frozen=True)
class NliTexts(PromptTexts):
    """Pieces of the reader's prompt: ``lead, first, second, ask``.

    Attributes:
        lead: field {question}; shared by all pairs of a question.
        first, second: field {answer}.
        ask: the instruction.
        yes, no: the labels whose likelihoods are compared.
    """

    lead: str = "Two people answered a question.\nQuestion: {question}\n"
    first: str = "First answer: {answer}\n"
    second: str = "Second answer: {answer}\n"
    ask: str = "If the first answer is right, is the second one right too? Reply Yes or No."
    yes: str = "Yes"
    no: str = "No"

    @checked
    def logprobs(self, reader: ReaderProtocol, pairs: Sequence[Pair]) -> FloatArray:
        """Return log P(yes) and log P(no) of each pair, in one call of the reader: [P, 2], nats."""
        labels = [reader.continuation(self.yes), reader.continuation(self.no)]
        requests = []
        for pair in pairs:
            both = self.first.format(answer=pair.first), self.second.format(answer=pair.second)
            prompt = reader.prompt([self.lead.format(question=pair.question.strip()), *both, self.ask])
            requests += [(prompt, label) for label in labels]
        return np.array([result.logprob for result in reader.loglikelihood(requests)]).reshape(-1, 2)


@checked
class ReaderNli(Similarity):
    """P(Yes) / (P(Yes) + P(No)) by the reader, asked whether the second answer follows from the first.

    The labels of all ordered pairs of all questions are scored in one pass on the tree. The pairs of a question share
    the question, and those with an equal first answer also share that answer.
    """

    name = "nli:reader"
    symmetric = False
    reads_question = True

    def __init__(self, reader: ReaderProtocol, texts: NliTexts | None = None) -> None:
        super().__init__()
        self.reader, self.texts = reader, texts or NliTexts()

    def settings(self) -> dict[str, Any]:
        """Return the reader's name and revision, and the texts of its prompt."""
        about = self.reader.describe()
        weights = {"revision": about["revision"]} if "revision" in about else {}
        return {"reader": about["name"], **weights, "texts": self.texts.to_dict()}

    def tables(self, questions: Sequence[str], texts: Sequence[Sequence[str]]) -> list[FloatArray]:
        """Return `Similarity.tables`, scoring both directions in one pass."""
        expect(len(texts) == len(questions), "texts", f"the answers to each of {len(questions)} questions", len(texts))
        both = [
            Pair(question, first, second)
            for question, group in zip(questions, texts, strict=True)
            for first, second in itertools.permutations(group, 2)
        ]
        self.score(both)  # all are cached now
        return super().tables(questions, texts)

    def _compute(self, pairs: list[Pair]) -> FloatArray:
        found = self.texts.logprobs(self.reader, pairs)
        odds = found[:, 1] - found[:, 0]
        share: FloatArray = 1.0 / (1.0 + np.exp(np.clip(odds, -700.0, 700.0)))
        return share
