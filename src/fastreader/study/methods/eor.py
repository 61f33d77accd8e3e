"""eor: an ensemble of retrievers, over the question's own passages and further sources, and a vote of its answers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fastreader.core.tree import TreeStats
from fastreader.data import Example, Passage
from fastreader.data.fingerprints import file_stamp
from fastreader.eor.answer import answer
from fastreader.eor.run import Retrievers
from fastreader.eor.similarity.loading import check_names
from fastreader.eor.sources import BM25
from fastreader.eor.texts import Texts, load_texts
from fastreader.eor.types import Answers
from fastreader.eor.voter import Voter
from fastreader.errors import FastreaderError, InputError
from fastreader.reader.programs.requests import Program
from fastreader.study.method import Answered, Asked, Family, NotApplicable, no_options

OWN = "R"
"""The source that returns the question's own passages."""
RETRIEVERS = ("R@1", "R@3", "R", "R@RR@3", "ReFree")
POOLINGS = ("mean", "max", "majority", "plurality")
_VOTER = ("similarity_threshold", "min_support", "dropped_vote")
_OPTIONS = ("retrievers", "similarities", *_VOTER, "texts", "max_new_tokens")


@dataclass(frozen=True)
class _Share:
    """What one question of a group cost, the same for all of them."""

    stats: TreeStats
    new: int
    seconds: float


_Found = tuple[Answers, _Share] | FastreaderError


@dataclass(frozen=True)
class Eor:
    """An ensemble with its voter.

    Attributes:
        retrievers: specifications.
        sources: files by name.
        depth: passages a source returns at most.
        voter: arguments of `Voter`.
        texts: of the prompts.
        max_new_tokens: of an answer.
        draws: never.
    """

    retrievers: tuple[str, ...]
    sources: tuple[tuple[str, str], ...]
    depth: int
    voter: dict[str, Any]
    texts: Texts
    max_new_tokens: int
    draws: bool = field(default=False, init=False)

    def programs(self, asked: Asked) -> list[Program[Answered]]:
        """As `StudyMethod.programs`; the group is retrieved for and answered together when the first one starts.

        Where that fails, each question is asked by itself, so that one that cannot be asked leaves the others alone.
        """

        @functools.cache
        def together() -> list[_Found]:
            try:
                return list(self._ask(asked))
            except FastreaderError as error:
                if len(asked.examples) == 1:
                    return [error]
            return [self._alone(asked, example) for example in asked.examples]

        return [self._program(i, together) for i in range(len(asked.examples))]

    def _alone(self, asked: Asked, example: Example) -> _Found:
        try:
            return self._ask(replace(asked, examples=[example]))[0]
        except FastreaderError as error:
            return error

    def _ask(self, asked: Asked) -> list[tuple[Answers, _Share]]:
        with asked.reader.metered() as meter:
            retrieved = self._retrievers(asked).retrieve(asked.examples)
            answers = answer(
                asked.reader,
                retrieved,
                texts=self.texts,
                max_new_tokens=self.max_new_tokens,
                keep_documents=True,
            )
        count = len(asked.examples)
        share = _Share(
            TreeStats(0, meter.given // count, meter.computed // count, 0),
            meter.new // count,
            meter.seconds / count,
        )
        return [(row, share) for row in answers]

    def _program(self, index: int, together: Callable[[], list[_Found]]) -> Program[Answered]:
        yield from ()  # the reader was asked for the whole group at once: a program without requests of its own
        found = together()[index]
        if isinstance(found, FastreaderError):
            raise found
        row, share = found
        if all(text is None for text in row.texts):
            raise NotApplicable(f"eor: every retriever failed ({'; '.join(row.failures.values())})")
        vote = Voter(**self.voter).vote(row)
        documents = [
            {
                "retriever": d.retriever,
                "failure": d.failure,
                "passages": [{"title": p.title, "text": p.text} for p in d.passages],
            }
            for d in row.documents
        ]
        ensemble = {
            "predictions": dict(zip(row.retrievers, row.texts, strict=True)),
            "documents": documents,
            "vote": vote.to_dict(),
        }
        return Answered(vote.answer or "", {"ensemble": ensemble}, share.stats, share.new, share.seconds)

    def _retrievers(self, asked: Asked) -> Retrievers:
        own: dict[str, list[Passage]] = {}
        for example in asked.examples:
            if own.setdefault(example.question, example.passages) != example.passages:
                raise InputError(
                    f"eor: the question {example.question[:60]!r} comes twice with other passages; retrievers are "
                    "asked by the question's text, so put the two in other studies"
                )
        files = {name: _bm25(file, self.depth, file_stamp(file)) for name, file in self.sources}
        sources = {OWN: own.__getitem__, **files}
        return Retrievers(self.retrievers, sources, reader=asked.reader, texts=self.texts)


@functools.lru_cache(maxsize=8)
def _bm25(file: str, depth: int, stamp: tuple[int, int]) -> BM25:
    return BM25(file, depth=depth)


def answers_of(row: dict[str, Any], example: Example) -> Answers:
    """The ensemble's answers out of a trace, for measures and for `Voter.fit`."""
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


def _make(variant: str, options: dict[str, Any], study: Any) -> Eor:
    no_options(f"eor:{variant}" if variant else "eor", options, _OPTIONS)
    if variant and variant not in POOLINGS:
        raise InputError(f"method 'eor:{variant}': expected one of {', '.join(f'eor:{p}' for p in POOLINGS)}")
    retrievers = tuple(options.get("retrievers") or study.eor.retrievers or RETRIEVERS)
    if len(retrievers) < 2:
        raise InputError(f"eor: expected at least 2 retrievers to vote, got {', '.join(retrievers)}")
    voter: dict[str, Any] = {"similarities": tuple(options.get("similarities", study.eor.similarities))}
    voter["pooling"] = variant or "mean"
    voter |= {k: options[k] for k in _VOTER if k in options}
    Voter(**voter).resolved()  # a wrong name is told now
    check_names(voter["similarities"])
    return Eor(
        retrievers,
        tuple(sorted(study.eor.sources.items())),
        study.eor.depth,
        voter,
        load_texts(options.get("texts", study.eor.texts)),
        options.get("max_new_tokens", study.max_new_tokens),
    )


def _variants() -> Sequence[str]:
    return ["", *POOLINGS]


EOR = Family("eor", "an ensemble of retrievers and a vote", _variants, _make)
