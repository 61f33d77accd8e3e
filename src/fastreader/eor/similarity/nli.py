"""Entailment between answers: by a cross-encoder, or by the reader itself."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fastreader.core.protocol import ReaderProtocol
from fastreader.eor.similarity.base import FloatArray, Pair, Similarity
from fastreader.eor.similarity.loading import load, longest
from fastreader.errors import InputError


def _check_fields(name: str, text: str, needed: str, *allowed: str) -> None:
    """Refuse a format string that would fail when the first answers are compared."""
    if f"{{{needed}}}" not in text:
        raise InputError(f"{name}: the field {{{needed}}} must appear in it, got {text!r}")
    try:
        text.format(**dict.fromkeys((needed, *allowed), ""))
    except (LookupError, ValueError, AttributeError) as error:
        fields = " and ".join(f"{{{field}}}" for field in (needed, *allowed))
        raise InputError(f"{name}: expected a format string with {fields} alone, got {text!r} ({error!r})") from None


class CrossEncoderNli(Similarity):
    """P(the first answer entails the second) by a sequence classifier; a voter reads the mean of both directions."""

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
        """Say which model; it is loaded when the first score is asked for.

        Args:
            model: a folder or hub id that transformers' AutoModelForSequenceClassification loads, such as
                "microsoft/deberta-xlarge-mnli", the paper's.
            statement: an answer as premise and as hypothesis; fields {answer} and, if wanted, {question}.
            label: the class whose probability counts, as the model's config names it, in any case.
            device: of torch; None: CUDA where there is one.
            batch_size: pairs a forward; it changes scores by no more than rounding.
        """
        super().__init__()
        _check_fields("statement", statement, "answer", "question")
        if batch_size < 1:
            raise InputError(f"batch_size: expected at least 1, got {batch_size}")
        self.name = f"nli:{os.fspath(model)}"
        self.reads_question = "{question}" in statement
        self._model, self._statement, self._label = os.fspath(model), statement, label
        self._device, self._batch = device, batch_size
        self._loaded: tuple[Any, Any, int] | None = None

    def settings(self) -> dict[str, Any]:
        """As `Similarity.settings`: the statement and the class."""
        return {"statement": self._statement, "label": self._label}

    def _compute(self, pairs: list[Pair]) -> FloatArray:
        import torch

        model, tokenizer, column = self._load()
        texts = [(self._text(p, p.first), self._text(p, p.second)) for p in pairs]
        order = sorted(range(len(texts)), key=lambda i: sum(map(len, texts[i])))
        out = np.zeros(len(pairs))
        for start in range(0, len(order), self._batch):
            part = order[start : start + self._batch]
            firsts, seconds = [texts[i][0] for i in part], [texts[i][1] for i in part]
            inputs = tokenizer(
                firsts,
                seconds,
                padding=True,
                truncation=True,
                max_length=longest(model, tokenizer),
                return_tensors="pt",
            ).to(model.device)
            with torch.inference_mode():
                logits = model(**inputs).logits.double()
            out[part] = logits.softmax(-1)[:, column].cpu().numpy()
        return out

    def _text(self, pair: Pair, answer: str) -> str:
        return self._statement.format(question=pair.question, answer=answer)

    def _load(self) -> tuple[Any, Any, int]:
        if self._loaded is None:
            model, tokenizer = load("AutoModelForSequenceClassification", self._model, self._device)
            labels = {str(name).lower(): int(i) for i, name in model.config.id2label.items()}
            if self._label.lower() not in labels:
                raise InputError(f"label: {self._model} has the classes {', '.join(labels)}, got {self._label!r}")
            self._loaded = model, tokenizer, labels[self._label.lower()]
        return self._loaded


@dataclass(frozen=True)
class NliTexts:
    """Pieces of the reader's prompt: ``lead, first, second, ask``.

    Attributes:
        lead: field {question}; shared by all pairs of a question.
        first, second: field {answer}.
        ask: what to judge.
        yes, no: the labels whose likelihoods are compared.
    """

    lead: str = "Two people answered a question.\nQuestion: {question}\n"
    first: str = "First answer: {answer}\n"
    second: str = "Second answer: {answer}\n"
    ask: str = "If the first answer is right, is the second one right too? Reply Yes or No."
    yes: str = "Yes"
    no: str = "No"

    def __post_init__(self) -> None:
        for name, needed in (("lead", "question"), ("first", "answer"), ("second", "answer")):
            _check_fields(f"NliTexts.{name}", getattr(self, name), needed)


class ReaderNli(Similarity):
    """P(Yes) against P(No) by the reader, asked whether the second answer follows from the first.

    The labels of all ordered pairs of all questions are scored in one pass on the tree, in which a question's pairs
    share the question, and those of equal first answer that too.
    """

    name = "nli:reader"
    symmetric = False
    reads_question = True

    def __init__(self, reader: ReaderProtocol, texts: NliTexts | None = None) -> None:
        super().__init__()
        self.reader, self.texts = reader, texts or NliTexts()

    def settings(self) -> dict[str, Any]:
        """As `Similarity.settings`: which reader, and the texts of its prompt."""
        about = self.reader.describe()
        weights = {"revision": about["revision"]} if "revision" in about else {}
        return {"reader": about["name"], **weights, "texts": asdict(self.texts)}

    def tables(self, questions: Sequence[str], texts: Sequence[Sequence[str]]) -> list[FloatArray]:
        """As `Similarity.tables`; both directions in one pass."""
        both = [
            Pair(question, first, second)
            for question, group in zip(questions, texts, strict=True)
            for first, second in itertools.permutations(group, 2)
        ]
        self.score(both)  # from here on all are known
        return super().tables(questions, texts)

    def _compute(self, pairs: list[Pair]) -> FloatArray:
        texts = self.texts
        yes, no = self.reader.continuation(texts.yes), self.reader.continuation(texts.no)
        requests = []
        for pair in pairs:
            prompt = self.reader.prompt(
                [
                    texts.lead.format(question=pair.question.strip()),
                    texts.first.format(answer=pair.first),
                    texts.second.format(answer=pair.second),
                    texts.ask,
                ]
            )
            requests += [(prompt, yes), (prompt, no)]
        found = np.array([result.logprob for result in self.reader.loglikelihood(requests)]).reshape(-1, 2)
        odds = found[:, 1] - found[:, 0]
        share: FloatArray = 1.0 / (1.0 + np.exp(np.clip(odds, -700.0, 700.0)))
        return share
