"""eor: an ensemble of retrievers over the question's own passages and further sources, and a vote of its answers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fastreader.core.checks import check_keys, expect, require
from fastreader.core.halving import by_halves
from fastreader.core.tree import TreeStats
from fastreader.data import Example, Passage
from fastreader.data.fingerprints import file_stamp
from fastreader.eor.answer import answer
from fastreader.eor.run import Limits, Retrievers
from fastreader.eor.similarity.loading import check_names
from fastreader.eor.sources import SourceFunction, open_source
from fastreader.eor.texts import Texts, load_texts
from fastreader.eor.types import Answers
from fastreader.eor.voter import Voter, saved_similarities
from fastreader.errors import FastreaderError
from fastreader.reader.programs.requests import Program
from fastreader.study.method import Answered, Batch, Family, NotApplicable, StudyMethod, check_options

OWN = "R"
"""The source that returns the question's own passages."""
RETRIEVERS = ("R@1", "R@3", "R", "R@RR@3", "ReFree")
POOLINGS = ("mean", "max", "majority", "plurality")
_VOTER = ("similarity_threshold", "min_support", "dropped_vote")
_OPTIONS = ("retrievers", "similarities", *_VOTER, "voter", "texts", "max_new_tokens")


@dataclass(frozen=True)
class EorMethod(StudyMethod):
    """An ensemble with its voter, or one retriever, whose answer needs no vote.

    Attributes:
        retrievers: specifications.
        sources: corpora, indexes or hits by name, as `open_source` takes them.
        depth: at most this many passages from a source.
        limits: lengths in words.
        voter: arguments of `Voter`.
        texts: of the prompts.
        max_new_tokens: at most this many tokens of an answer.
        saved: the values of a voter that `Voter.save` wrote, which votes instead; None without one.
    """

    retrievers: tuple[str, ...]
    sources: tuple[tuple[str, str], ...]
    depth: int
    limits: Limits
    voter: dict[str, Any]
    texts: Texts
    max_new_tokens: int
    saved: dict[str, Any] | None = None

    def programs(self, batch: Batch) -> list[Program[Answered]]:
        """Retrieve and answer for the whole batch, and return a program that votes for each question.

        If the batch fails, it runs by halves, so that a question that fails does not affect the others.
        """

        def answered(examples: Sequence[Example]) -> list[tuple[Answers, Answered]]:
            return self._answers(replace(batch, examples=examples)) if examples else []

        return [self._vote(found) for found in by_halves(batch.examples, answered, FastreaderError)]

    def _answers(self, batch: Batch) -> list[tuple[Answers, Answered]]:
        with batch.reader.metered() as meter:
            retrieved = self._retrievers(batch).retrieve(batch.examples)
            answers = answer(
                batch.reader,
                retrieved,
                texts=self.texts,
                max_new_tokens=self.max_new_tokens,
                keep_documents=True,
            )
        count = len(batch.examples)
        stats = TreeStats(0, meter.total_tokens // count, meter.computed_tokens // count, 0)
        share = Answered("", direct=stats, new_tokens=meter.new_tokens // count, seconds=meter.seconds / count)
        return [(row, share) for row in answers]

    def _vote(self, found: tuple[Answers, Answered] | FastreaderError) -> Program[Answered]:
        yield from ()  # a program without requests
        if isinstance(found, FastreaderError):
            raise found
        row, share = found
        if all(text is None for text in row.texts):
            raise NotApplicable(f"eor: every retriever failed ({'; '.join(row.failures.values())})")
        documents = [
            {
                "retriever": d.retriever,
                "failure": d.failure,
                "passages": [{"title": p.title, "text": p.text} for p in d.passages],
            }
            for d in row.documents
        ]
        if len(row.texts) == 1:
            return replace(share, text=row.texts[0] or "", trace={"retrieved": documents[0]})
        voter = Voter(**self.voter) if self.saved is None else Voter.from_dict(self.saved)
        vote = voter.vote(row)
        ensemble = {
            "predictions": dict(zip(row.retrievers, row.texts, strict=True)),
            "documents": documents,
            "vote": vote.to_dict(),
        }
        return replace(share, text=vote.answer or "", trace={"ensemble": ensemble})

    def _retrievers(self, batch: Batch) -> Retrievers:
        own: dict[str, list[Passage]] = {}
        for example in batch.examples:
            require(
                own.setdefault(example.question, example.passages) == example.passages,
                f"eor: the question {example.question[:60]!r} appears twice with different passages; retrievers "
                "know a question by its text, so put the two in different studies",
            )
        sources = {
            OWN: own.__getitem__,
            **{name: _source(file, self.depth, file_stamp(file)) for name, file in self.sources},
        }
        return Retrievers(self.retrievers, sources, reader=batch.reader, texts=self.texts, limits=self.limits)


@functools.lru_cache(maxsize=8)
def _source(file: str, depth: int, stamp: tuple[int, int]) -> SourceFunction:
    return open_source(file, depth=depth)


def answers_of(row: dict[str, Any], example: Example) -> Answers:
    """Return the ensemble's answers from a trace, for metrics and for `Voter.fit`."""
    ensemble = row["ensemble"]
    documents = [
        {**d, "passages": [asdict(Passage(p["text"], p["title"])) for p in d["passages"]]}
        for d in ensemble["documents"]
    ]
    values = {
        "question": example.question,
        "predictions": ensemble["predictions"],
        "documents": documents,
        "answers": example.answers,
        "id": example.id,
    }
    return Answers.from_dict(values)


def _make(variant: str, options: dict[str, Any], study: Any) -> EorMethod:
    check_options(f"eor:{variant}" if variant else "eor", options, _OPTIONS)
    retrievers = tuple(options.get("retrievers") or study.eor.retrievers or RETRIEVERS)
    expect(bool(retrievers), "eor: retrievers", "at least one", retrievers)
    own = [name for name in ("similarities", *_VOTER) if name in options]
    saved = options.get("voter", None if own or variant else study.eor.voter)
    voter: dict[str, Any] = {"similarities": tuple(options.get("similarities", study.eor.similarities))}
    voter["pooling"] = variant or "mean"
    voter |= {k: options[k] for k in _VOTER if k in options}
    if saved is not None:
        expect(not own and not variant, "eor: voter", "no other option of voting besides it", own or variant)
        voter = {"similarities": saved_similarities(saved)}
        fitted = (saved.get("fitted") or {}).get("retrievers") or retrievers
        same = sorted(fitted) == sorted(retrievers) or len(retrievers) == 1
        expect(same, "eor: voter", f"one fitted on {', '.join(retrievers)}", ", ".join(fitted))
    check_names(voter["similarities"])
    check_keys("eor.limits", study.eor.limits, Limits.__dataclass_fields__)
    Voter(**voter).resolved() if saved is None else Voter.from_dict(saved)  # raises now if a name is unknown
    return EorMethod(
        retrievers,
        tuple(sorted(study.eor.sources.items())),
        study.eor.depth,
        Limits(**study.eor.limits),
        voter,
        load_texts(options.get("texts", study.eor.texts)),
        options.get("max_new_tokens", study.max_new_tokens),
        saved if len(retrievers) > 1 else None,
    )


_ABOUT = "Answer from each retriever's passages; the answer wins "
EOR = Family(
    "eor",
    _make,
    lambda _: _OPTIONS,
    {
        "": "Answer from each retriever's passages, and vote as the file of a voter says, or by the mean (EoR).",
        "mean": f"{_ABOUT}to which the others are most similar on average.",
        "max": f"{_ABOUT}that has the most similar other one.",
        "majority": f"{_ABOUT}with which at least half of the others agree.",
        "plurality": f"{_ABOUT}with which most agree.",
    },
)
