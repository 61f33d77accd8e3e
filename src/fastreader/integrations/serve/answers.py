"""Rerank, score and read: from a request's body to the response's."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fastreader.core.checks import expect, rejecting
from fastreader.core.tree import TreeStats
from fastreader.data.documents import as_passages
from fastreader.data.types import Example, Passage
from fastreader.integrations.serve.bodies import ReadRequest, RerankRequest, ScoreRequest
from fastreader.integrations.serve.packed_reader import PackedReader
from fastreader.integrations.serve.settings import ServerSettings
from fastreader.moi.calibration.pool import Pool
from fastreader.moi.calibration.store import find
from fastreader.moi.quantities.observations import Observations, observe
from fastreader.moi.solve.debias import debias
from fastreader.passages.attribution import Attribution, attribute
from fastreader.passages.attribution.attribute import ALL_SUBSETS
from fastreader.passages.conflicts import conflicts
from fastreader.passages.conflicts.forms import different
from fastreader.passages.ranking.relevance import RELEVANCE
from fastreader.passages.ranking.rerank import LIKELIHOOD, MOI, rerank
from fastreader.passages.ranking.results import RerankResult
from fastreader.passages.ranking.yes_no import YES_NO
from fastreader.permutations import named_count, resolve
from fastreader.reader.prompts.template import Template
from fastreader.scoring.api import score_permutations
from fastreader.scoring.marginal_answer import distinct
from fastreader.scoring.reading import reading_prompts
from fastreader.scoring.results import PermutationScores

MOST_PASSAGES = 20  # of a pooled question: what requests can make the server keep is bounded


class ServerPool:
    """The pool of a server, shared by its requests.

    Args:
        settings: `pool` and `pool_file` of it.

    Attributes:
        pool: None if the server has none.

    Raises:
        InputError: if the file holds something else than a pool.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._file, self._lock, self._written = settings.pool_file, threading.Lock(), 0
        self.pool: Pool | None = None
        if settings.pool:
            self.pool = Pool.load(self._file) if self._file and Path(self._file).exists() else Pool()
            self._written = self._size()

    def add(self, scores: PermutationScores) -> Observations | None:
        """Add a question's scores if they can help to settle a bias: N or more orderings of 3 to 20 passages."""
        observed = observe(scores)
        whole = MOST_PASSAGES >= observed.length == observed.passages >= 3 and len(observed) >= observed.passages
        if self.pool is None or not whole:
            return None
        self.pool.add(observed)
        return observed

    def keep(self) -> None:
        """Save the pool if it has grown since it was last saved."""
        if self._file is None or self.pool is None:
            return
        with self._lock:
            if (size := self._size()) != self._written:
                self.pool.save(self._file)
                self._written = size

    def states(self) -> list[dict[str, Any]]:
        """Return `Pool.states`, an empty list without a pool."""
        return [] if self.pool is None else self.pool.states()

    def shown(self) -> str:
        """Return the states in words for the page, empty before the first question."""
        known = " ".join(f"{of['passages']} passages: {of['state']}." for of in self.states())
        return known and f"Position bias of this reader, learned from requests. {known}"

    def _size(self) -> int:
        return sum(state["questions"] for state in self.states())


MOST_ORDERINGS = 100
MOST_COMPARED = 100  # documents that are compared in pairs
# Of a text in UTF-8 for each token of the context. What does not fit is cut, but a tokenizer takes a hundred times the
# memory of a text, and a character may have several tokens.
BYTES = 16
MOST_READ = 3_000_000  # bytes of documents in all pairs, or of passages in all orderings
MOST_ATTRIBUTED = 20  # passages whose contributions are sampled
_ORDERS, _SUBSETS = 4, 32  # pairs of orders for them, and subsets for the surrogate
_TOGETHER = 6  # times that each byte counts where a method reads documents together, but not in pairs
_BATCH = 100_000  # bytes of queries and documents that are read in one call
_AROUND = 100  # bytes that a prompt adds to each document
_ALONE = (None, LIKELIHOOD, RELEVANCE, YES_NO)  # methods that read each document by itself


def answer_rerank(request: RerankRequest, reader: PackedReader, pooled: ServerPool) -> Any:
    """Return the documents in order of relevance, and pool what MoI scores for a reader without a calibration."""
    given = request.documents if request.texts is None else request.texts
    documents = _passages(reader, given, "documents" if request.texts is None else "texts")
    check_bytes(reader, "query", request.query)
    check_bytes(reader, "instruction", request.instruction or "")
    if request.max_tokens_per_doc is not None:
        documents = [_cut(reader, passage, request.max_tokens_per_doc) for passage in documents]
    how: Any = {"method": request.method, "instruction": request.instruction}
    if request.method in _ALONE:
        results, stats = _alone(reader, [request.query] * len(documents), documents, **how)
        results.sort(key=lambda result: (result.value is None, -(result.value or 0.0)))
        note = ""
    else:
        _check_compared(documents, str(request.method).replace("_", "-") == "pairwise")
        pool = {"pool": pooled.pool, "uncalibrated": True} if pooled.pool and request.method == MOI else {}
        whole = rerank(reader, request.query, documents, progress=False, **how, **pool)
        results, stats, note = whole.results, whole.stats, whole.note
        pooled.keep()
    ranked = results[: request.top_n or None]
    if request.texts is not None:  # as text-embeddings-inference answers
        text = request.return_documents
        scores = [r.value if request.raw_scores and r.value is not None else r.relevance for r in ranked]
        return [
            {"index": r.index, "score": score, **({"text": r.passage.text} if text else {})}
            for r, score in zip(ranked, scores, strict=True)
        ]
    return {
        "id": new_id("rerank"),
        "model": reader.name,
        "results": _results(ranked, request.return_documents),
        "usage": usage(stats),
        "meta": {"tokens": {"input_tokens": int(stats.total_tokens)}, "cached_tokens": int(stats.cached_tokens)},
        **({"note": note} if note else {}),
    }


def _alone(
    reader: PackedReader, queries: Sequence[str], documents: Sequence[Passage], **how: Any
) -> tuple[list[RerankResult], TreeStats]:
    """Return the result of each query with its document, and the tokens of all, by calls of bounded size.

    Documents of equal queries are read in one call as far as they fit.
    """
    found: dict[int, RerankResult] = {}
    stats, members = TreeStats(0, 0, 0, 0), dict[str, list[int]]()
    for i, query in enumerate(queries):
        members.setdefault(query, []).append(i)
    batch, size = dict[str, list[int]](), 0

    def read() -> None:
        nonlocal stats
        reader.check()
        groups = [[documents[i] for i in places] for places in batch.values()]
        rankings = rerank(reader, list(batch), groups, progress=False, **how)
        for ranked, places in zip(rankings, batch.values(), strict=True):
            stats = stats + ranked.stats
            for result in ranked:
                found[places[result.index]] = replace(result, index=places[result.index])

    for query, places in members.items():
        for i in places:
            own = _AROUND + size_of(query) + size_of(documents[i].text) + size_of(documents[i].title)
            if batch and size + own > _BATCH:
                read()
                batch, size = {}, 0
            batch.setdefault(query, []).append(i)
            size += own
    if batch:
        read()
    return [found[i] for i in range(len(documents))], stats


def _check_compared(documents: Sequence[Passage], in_pairs: bool) -> None:
    """Reject documents whose comparison takes too much."""
    count, times = len(documents), 2 * len(documents) if in_pairs else _TOGETHER
    size = times * sum(size_of(passage.text) + size_of(passage.title) for passage in documents)
    expect(not in_pairs or count <= MOST_COMPARED, "documents", f"at most {MOST_COMPARED} to compare in pairs", count)
    expect(size <= MOST_READ, "documents", f"at most {MOST_READ // times:,} bytes to compare", f"{size // times:,}")


def answer_score(request: ScoreRequest, reader: PackedReader) -> dict[str, Any]:
    """Return the relevance of each pair, with the documents of equal queries ranked together."""
    queries = [request.queries] if isinstance(request.queries, str) else request.queries
    given = request.documents if isinstance(request.documents, list) else [request.documents]
    documents = _passages(reader, given, "documents")
    for i, query in enumerate(queries):
        check_bytes(reader, f"queries[{i}]", query)
    check_bytes(reader, "instruction", request.instruction or "")
    count = max(len(queries), len(documents))
    fits = all(len(side) in (1, count) for side in (queries, documents))
    expect(fits, "documents", f"one, or one for each of {len(queries)} queries", f"{len(documents)} documents")
    each = [queries[i % len(queries)] for i in range(count)]
    paired = [documents[i % len(documents)] for i in range(count)]
    results, stats = _alone(reader, each, paired, instruction=request.instruction)
    data = [{"index": i, "object": "score", "score": result.relevance} for i, result in enumerate(results)]
    return {"id": new_id("score"), "object": "list", "model": reader.name, "data": data, "usage": usage(stats)}


def answer_read(request: ReadRequest, reader: PackedReader, pooled: ServerPool) -> dict[str, Any]:
    """Return what each order of the passages makes of the answer, and what the passages are worth."""
    started = time.perf_counter()
    passages = _passages(reader, request.passages, "passages", allow_blank=False)
    count = named_count(request.permutations, len(passages))
    expect(count <= MOST_ORDERINGS, "permutations", f"at most {MOST_ORDERINGS} orderings", count)
    design = resolve(request.permutations, len(passages), request.seed)
    orders = design.permutations
    notes: list[str] = []
    stats = TreeStats(0, 0, 0, 0)
    candidates = request.candidates
    own = request.question + "".join(passage.title + passage.text for passage in passages)
    check_bytes(reader, "passages", own)
    size = len(orders) * sum(map(size_of, [own, *(candidates or [])]))
    expect(size <= MOST_READ, "permutations", f"at most {MOST_READ:,} bytes in all orderings", f"{size:,}")
    if request.attribute:
        n = len(passages)
        expect(n <= MOST_ATTRIBUTED, "attribute", f"at most {MOST_ATTRIBUTED} passages", n)
        subsets = 2**n if n <= ALL_SUBSETS else 2 * _ORDERS * n + _SUBSETS
        size = size_of(own) * subsets // 2  # a subset holds half of the passages in the mean
        expect(size <= MOST_READ, "attribute", f"at most {MOST_READ:,} bytes in all subsets of them", f"{size:,}")
    if candidates is None:
        prompts = reading_prompts(reader, request.question, passages, orders.tolist())
        written = reader.generate(prompts, max_new_tokens=request.max_tokens, stop=["\n"])
        stats = stats + written.stats
        candidates = [text for text in dict.fromkeys(texts[0].text.strip() for texts in written) if text]
        if not candidates:
            notes.append("the reader wrote no answer under any order")
    example = Example(request.question, passages, candidates=candidates)
    scores = score_permutations(
        reader, example, permutations=design, query_likelihood=True, question_only=not candidates
    )
    ranked = rerank(reader, request.question, passages)
    compared = different(distinct(candidates)[0])
    found_odd = None
    if len(compared) > 1 and len(passages) > 1:
        found_odd = conflicts(reader, request.question, passages, compared, aliases=request.aliases)
        stats = stats + found_odd.stats
        notes += [found_odd.note] if found_odd.note else []
    contributions = None
    if request.attribute and scores.best is not None:
        contributions = attribute(reader, request.question, passages, scores.best, orders=_ORDERS, subsets=_SUBSETS)
        stats = stats + contributions.stats
    about, template, n = reader.describe(), Template().digest(), len(passages)
    found = find(about, template, n) if n > 1 else None
    if found is None and pooled.pool is not None and pooled.add(scores):
        bias = pooled.pool.bias(about, template, n)
        notes.append(pooled.pool.state(about, template, n))
        found = None if bias is None else (bias, "pool")
        pooled.keep()
    utilities = None
    if len(orders) < 2:
        notes.append("no utilities: they show in the difference between orderings, and there is one")
    elif found is None:
        notes.append(f"no utilities: there is no calibration of {reader.name} for {len(passages)} passages")
    else:
        worth = debias(scores, found[0])
        utilities = worth.utility.tolist()
        notes += [worth.reason] if worth.reason else []
    return {
        "id": new_id("read"),
        "model": reader.name,
        "question": request.question,
        "passages": [_document(passage) for passage in passages],
        "orderings": orders.tolist(),
        "candidates": candidates,
        "proposed": request.candidates is None,
        "logprobs": scores.logprobs.tolist(),
        "probabilities": scores.probabilities().tolist() if candidates else [[] for _ in orders],
        "consensus": scores.consensus().tolist() if candidates else [],
        "answer": scores.best,
        "question_logprobs": scores.question_logprobs.tolist(),
        "utilities": utilities,
        "odd_scores": None if found_odd is None else found_odd.odd_scores.tolist(),
        "odd": None if found_odd is None else found_odd.odd,
        "attribution": None if contributions is None else _contributions(contributions),
        "results": _results(ranked.results, False),
        "notes": notes,
        "usage": usage(stats + scores.stats + ranked.stats),
        "seconds": time.perf_counter() - started,
    }


def _contributions(found: Attribution) -> dict[str, Any]:
    values = {name: getattr(found, name).tolist() for name in ("alone", "left_out", "shapley", "surrogate")}
    errors = None if np.isnan(found.shapley_error).any() else found.shapley_error.tolist()
    return {"answer": found.answer, **values, "shapley_error": errors, "exact": found.exact, "note": found.note}


def _passages(reader: PackedReader, given: list[Any], name: str, *, allow_blank: bool = True) -> list[Passage]:
    """Return passages whose texts and titles UTF-8 can hold, and which are not many times as long as the context."""
    passages = as_passages(given, name=name, allow_blank=allow_blank)
    for i, passage in enumerate(passages):
        check_bytes(reader, f"{name}[{i}]: text", passage.text)
        check_bytes(reader, f"{name}[{i}]: title", passage.title)
    return passages


def check_bytes(reader: PackedReader, name: str, text: str) -> None:
    """Reject a text that UTF-8 cannot hold, or that is many times as long as the context."""
    with rejecting(f"{name}: expected text that UTF-8 can hold", UnicodeEncodeError):
        size = size_of(text)
    most = size if reader.max_length is None else BYTES * reader.max_length
    expect(size <= most, name, f"at most {most:,} bytes, {BYTES} for each token of the context", f"{size:,}")


def size_of(text: str) -> int:
    """Return the number of bytes of a text in UTF-8, at most one token each for a tokenizer of bytes."""
    return len(text) if text.isascii() else len(text.encode())


def _cut(reader: PackedReader, passage: Passage, most: int) -> Passage:
    """Return a passage with at most this many tokens of its text."""
    tokens = reader.encoder.piece(passage.text)
    return passage if len(tokens) <= most else replace(passage, text=reader.encoder.text(tokens[:most]))


def usage(stats: TreeStats) -> dict[str, Any]:
    """Return the number of tokens in a request's texts, and the number computed for it if it ran alone.

    How many of the computed tokens the cache of passages had is in the field that OpenAI and vLLM have for it.
    """
    total, details = int(stats.total_tokens), {"cached_tokens": int(stats.cached_tokens)}
    counts = {"prompt_tokens": total, "total_tokens": total, "computed_tokens": int(stats.computed_tokens)}
    return {**counts, "prompt_tokens_details": details}


def new_id(kind: str) -> str:
    """Return an identifier for a response."""
    return f"{kind}-{uuid.uuid4().hex}"


def _results(ranked: Sequence[RerankResult], documents: bool) -> list[dict[str, Any]]:
    results = []
    for result in ranked:
        row: dict[str, Any] = {"index": result.index, "relevance_score": result.relevance, "value": result.value}
        if documents:
            row["document"] = _document(result.passage)
        if result.note:
            row["note"] = result.note
        results.append(row)
    return results


def _document(passage: Passage) -> dict[str, Any]:
    more = {"title": passage.title, "id": passage.id, "metadata": passage.metadata}
    return {"text": passage.text, **{key: value for key, value in more.items() if value}}
