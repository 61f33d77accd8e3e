"""Compare passages, and answer from each (Rerank, RePlug) or from the one that compares best (Table 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked
from fastreader.core.checks import expect
from fastreader.core.protocol import TextOrTokens
from fastreader.data import Passage
from fastreader.data.documents import PassageLike, as_passages
from fastreader.data.types import whole_text
from fastreader.errors import MissingExtraError
from fastreader.models.loading.sentence_encoders import Encoder, load_encoder
from fastreader.reader.programs.requests import Program, score
from fastreader.statistics.measures.answers import normalise
from fastreader.sure.program import sure
from fastreader.sure.replies import short_answer
from fastreader.sure.settings import Settings
from fastreader.sure.task import Task, Variant, finished
from fastreader.sure.types import Result
from fastreader.sure.variants.ablations import STAGE, answer_from, base_pieces, generic_summary, write_answers

FloatArray = npt.NDArray[np.float64]


def passage_weights(task: Task, otherwise: str) -> FloatArray:
    """Return float64 [N], a softmax of similarities to the question of the kind in the settings, or else `otherwise`.

    Raises:
        InputError: if weights="retriever" and a passage has no finite score.
        MissingExtraError: if scikit-learn or sentence-transformers is needed and not installed.
    """
    kind = task.settings.weights or otherwise
    if kind == "equal":
        return np.full(len(task.passages), 1 / len(task.passages))
    if kind == "retriever":
        for i, passage in enumerate(task.passages):
            finite = passage.score is not None and math.isfinite(passage.score)
            expect(finite, f"passages[{i}].score", "a finite number for weights='retriever'", passage.score)
        similarity = np.array([p.score for p in task.passages], dtype=np.float64)
    elif kind == "tfidf":
        similarity = tfidf_similarity(task.question, task.passages)
    else:
        similarity = encoder_similarity(task.settings, task.question, task.passages)
    return softmax(similarity / task.settings.weight_temperature)


def softmax(values: FloatArray) -> FloatArray:
    """Return exp(values) over its sum: float64 [N] to [N]."""
    powers = np.exp(values - values.max())
    shares: FloatArray = powers / powers.sum()
    return shares


def tfidf_similarity(text: str, passages: Sequence[Passage]) -> FloatArray:
    """Return the cosine of TF-IDF vectors of `text` and each passage, fitted on these texts only: float64 [N]."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ImportError:
        raise MissingExtraError("scikit-learn", "encoders") from None
    vectors = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b").fit_transform([text, *map(whole_text, passages)])  # nosec B106 # a pattern of words
    similarity: FloatArray = (vectors[1:] @ vectors[0].T).toarray()[:, 0].astype(np.float64)
    return similarity


def encoder_similarity(settings: Settings, text: str, passages: Sequence[Passage]) -> FloatArray:
    """Return the cosine of sentence embeddings of `text` and each passage: float64 [N]."""
    encoder: Encoder = settings.encoder if callable(settings.encoder) else _loaded(settings.encoder)
    vectors = encoder([text, *map(whole_text, passages)]).astype(np.float64)
    similarity: FloatArray = vectors[1:] @ vectors[0]
    return similarity


@lru_cache(maxsize=2)
def _loaded(name: str) -> Encoder:
    return load_encoder(name)


def rerank(task: Task) -> Program[Result]:
    """Answer by a vote, each passage's answer with its passage's weight (Lazaridou et al. 2022); by default TF-IDF."""
    weights = passage_weights(task, "tfidf")
    answers = yield from answers_of_passages(task)
    kinds, votes = weighted_votes(answers, weights)
    best = kinds[int(np.argmax(votes))] if kinds else ""
    return finished(task, best, answers=answers, weights=weights.tolist(), kinds=kinds, votes=votes.tolist())


def replug(task: Task) -> Program[Result]:
    """Answer by the likeliest of the passages' answers in the mixture of all passages (Shi et al. 2023, Eq. 2).

    p(y | q) = sum over passages d of weight(d) p(y | d, q). By default the weights come from a sentence encoder. The
    probabilities of all answers after all passages are one packed pass.
    """
    weights = passage_weights(task, "encoder")
    answers = yield from answers_of_passages(task)
    kinds, _ = weighted_votes(answers, weights)
    if not kinds:
        return finished(task, "", answers=answers, weights=weights.tolist(), kinds=[], logprobs=[])
    prompts = passage_prompts(task)
    # With its end: without it, the beginning of another answer would be at least as likely as that answer.
    labels = [task.label(STAGE, kind, end=True) for kind in kinds]
    scored = yield from score(STAGE, [(prompt, label) for prompt in prompts for label in labels])
    table = np.array([s.logprob for s in scored]).reshape(len(prompts), len(kinds))
    mixed = mixture(table, weights)
    best = kinds[int(np.argmax(mixed))]
    return finished(task, best, answers=answers, weights=weights.tolist(), kinds=kinds, logprobs=mixed.tolist())


def answers_of_passages(task: Task) -> Program[list[str]]:
    """Return the short answer from each single passage, in one call."""
    replies = yield from write_answers(task, passage_prompts(task))
    return list(map(short_answer, replies))


def passage_prompts(task: Task) -> list[TextOrTokens]:
    """Return the base prompt over each single passage."""
    tail = base_pieces(task)
    return [task.after_passages(STAGE, [tail], [passage])[0] for passage in task.passages]


def weighted_votes(answers: Sequence[str], weights: FloatArray) -> tuple[list[str], FloatArray]:
    """Return the distinct answers that are not empty, as first written, with the sums of their weights.

    Args:
        answers: N texts.
        weights: float64 [N].

    Returns:
        A texts in order of appearance, and float64 [A].
    """
    first: dict[str, str] = {}
    votes: dict[str, float] = {}
    for answer, weight in zip(answers, weights.tolist(), strict=True):
        if key := normalise(answer) or answer.casefold():
            first.setdefault(key, answer)
            votes[key] = votes.get(key, 0.0) + weight
    return list(first.values()), np.array(list(votes.values()))


def mixture(logprobs: FloatArray, weights: FloatArray) -> FloatArray:
    """Return log of sum over d of weights[d] exp(logprobs[d, a]): float64 [N, A] and [N] to [A], nats."""
    with np.errstate(divide="ignore"):
        terms = logprobs + np.log(weights)[:, None]
    highest = terms.max(axis=0)
    mixed: FloatArray = highest + np.log(np.exp(terms - highest).sum(axis=0))
    return mixed


Chooser = Callable[[Task], Program[list[int]]]


def top_passage(name: str, about: str, order: Chooser, takes: tuple[str, ...], *, rereads: bool = False) -> Variant:
    """Return the method "top1_<name>", which answers from the first passage of an order."""

    def program(task: Task) -> Program[Result]:
        indices = yield from order(task)
        reply = yield from answer_from(replace(task, passages=[task.passages[indices[0]]]))
        return finished(task, short_answer(reply), order=indices, reply=reply)

    return Variant(f"top1_{name}", f"base over one passage, {about}", program, ("passages",), takes, rereads)


def by_retriever(task: Task) -> Program[list[int]]:
    """Return the order in which the passages came."""
    yield from ()  # no request
    return list(range(len(task.passages)))


def by_question(task: Task) -> Program[list[int]]:
    """Order by similarity to the question."""
    yield from ()
    return rerank_passages(task.question, task.passages, task.settings)


def by_generic_summary(task: Task) -> Program[list[int]]:
    """Order by similarity to a summary that depends on no candidate, or with a note to the question if it is empty."""
    summary = yield from generic_summary(task)
    return _by_summary(task, summary)


def by_sure(task: Task) -> Program[list[int]]:
    """Order by similarity to the summary of SuRe's answer, or with a note to the question without a summary."""
    result = yield from sure(task)
    return _by_summary(task, result.rationale)


def _by_summary(task: Task, summary: str) -> list[int]:
    if not summary:
        task.notes.append("there is no summary to compare passages with; the question was used instead")
    return rerank_passages(summary or task.question, task.passages, task.settings)


@checked
def rerank_passages(text: str, passages: Iterable[PassageLike], settings: Settings | None = None) -> list[int]:
    """Return the indices of the passages by cosine similarity of sentence embeddings to `text`, the nearest first.

    Args:
        text: a text, for example the `rationale` of a `SureResult`.
        passages: anything that `fastreader.data.documents.as_passages` takes.
        settings: decides the encoder.

    Raises:
        InputError: if `passages` holds anything else.
    """
    found = as_passages(passages)
    if not found:
        return []
    similarity = encoder_similarity(settings or Settings(), text, found)
    order: list[int] = np.argsort(-similarity, kind="stable").tolist()
    return order
