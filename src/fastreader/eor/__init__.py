"""EoR, an ensemble of retrievers (Li et al. 2024): retrieve in many ways, answer each, and let the answers vote.

`Retrievers` evaluates specifications such as "SE@RR@5&Wiki@5@CP" over the caller's sources, `answer` reads every
retriever's document in one generation, `Voter` chooses among the answers and learns its weights; `measures` says how
inconsistent the retrievers are, and why. Nothing here imports torch until a model is needed.
"""

from fastreader.eor import measures
from fastreader.eor.answer import answer, is_answer, is_refusal
from fastreader.eor.fit import FitReport
from fastreader.eor.index import build_index
from fastreader.eor.measures import correctness
from fastreader.eor.rerank import Cosine, QuestionLikelihood
from fastreader.eor.run import PAPER, Limits, Retrievers
from fastreader.eor.similarity import (
    F1,
    BertScore,
    CrossEncoderNli,
    Exact,
    Function,
    Idf,
    NliTexts,
    ReaderNli,
    Similarity,
)
from fastreader.eor.sources import BM25, Dense, PrecomputedHits, as_source, open_source
from fastreader.eor.spec import SpecError, parse
from fastreader.eor.texts import SHORT, Texts, load_texts
from fastreader.eor.types import Answers, Document, Retrieval, Vote
from fastreader.eor.voter import Voter

__all__ = [
    "BM25",
    "F1",
    "PAPER",
    "SHORT",
    "Answers",
    "BertScore",
    "Cosine",
    "CrossEncoderNli",
    "Dense",
    "Document",
    "Exact",
    "FitReport",
    "Function",
    "Idf",
    "Limits",
    "NliTexts",
    "PrecomputedHits",
    "QuestionLikelihood",
    "ReaderNli",
    "Retrieval",
    "Retrievers",
    "Similarity",
    "SpecError",
    "Texts",
    "Vote",
    "Voter",
    "answer",
    "as_source",
    "build_index",
    "correctness",
    "is_answer",
    "is_refusal",
    "load_texts",
    "measures",
    "open_source",
    "parse",
]
